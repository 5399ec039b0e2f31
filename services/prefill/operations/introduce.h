// Prefill.Introduce.
#pragma once

#include "absl/status/status.h"

#include "common/handoff/send/sender.h"
#include "proto/baton/worker/v1/prefill.pb.h"

namespace baton::prefill::operations {

// Has `sender` connect to the decode workers, behind the scenes. kInvalidArgument, without any
// effect, for an address that is none and for too many.
absl::Status Introduce(handoff::Sender& sender, const worker::v1::IntroduceRequest& request);

}  // namespace baton::prefill::operations
