// How much memory of the device sequences may take.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"

namespace baton::model {

// What is left of `share` of the current device's memory, by everything that is in use now:
// weights, activations, workspace, CUDA itself. kResourceExhausted when that is nothing.
absl::StatusOr<size_t> KvBudget(double share);

}  // namespace baton::model
