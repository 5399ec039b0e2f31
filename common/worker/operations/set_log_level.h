// Control.SetLogLevel.
#pragma once

#include "absl/status/status.h"

#include "proto/baton/worker/v1/control.pb.h"

namespace baton::worker::operations {

// kInvalidArgument (field level) for a word that is no level.
absl::Status SetLogLevel(const v1::SetLogLevelRequest& request);

}  // namespace baton::worker::operations
