// The command line that prefill and decode workers share.
#pragma once

#include "absl/status/statusor.h"

#include "common/engine/engine.h"
#include "common/worker/worker_options.h"

namespace baton::worker {

// Options from the flags of this folder, validated; `role` is the binary's. Also starts the log.
// kInvalidArgument names the flag and its limits.
absl::StatusOr<WorkerOptions> WorkerOptionsFromFlags(engine::Role role, const std::string& version);

}  // namespace baton::worker
