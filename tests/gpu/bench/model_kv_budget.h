// How much memory of the device, and of the host, sequences may take.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"

namespace baton::model {

// What is left of `share` of the current device's memory, by everything that is in use now:
// weights, activations, workspace, CUDA itself. kResourceExhausted when that is nothing.
absl::StatusOr<size_t> KvBudget(double share);

// `share` of the host's memory that is available, within the limit of the process's control group.
// kInternal when neither can be read.
absl::StatusOr<size_t> HostKvBudget(double share);

}  // namespace baton::model
