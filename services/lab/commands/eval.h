// baton-lab eval: evaluation cases through one engine, or through two joined by the loopback
// transport.
#pragma once

#include "absl/status/status.h"

namespace baton::lab {

// Runs the command with the process's flags.
absl::Status RunEval();

}  // namespace baton::lab
