// baton-lab eval: evaluation cases through one engine, or through two joined by the loopback
// transport.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/worker/worker_options.h"

namespace baton::lab {

// Runs the command with the process's flags.
absl::Status RunEval();

// The model and the memory of whatever runs evaluation cases, from the flags. kInvalidArgument
// names the flag.
absl::StatusOr<worker::WorkerOptions> EvalOptionsFromFlags();

}  // namespace baton::lab
