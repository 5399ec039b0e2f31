// baton-lab inspect: what a model directory holds.
#pragma once

#include "absl/status/status.h"

namespace baton::lab {

// Prints configuration, parameters, KV bytes per token and SwiftKV structure of --model, and checks
// that every needed tensor is there with the right shape and a readable dtype. kDataLoss names the
// first that is not; the others are printed.
absl::Status RunInspect();

}  // namespace baton::lab
