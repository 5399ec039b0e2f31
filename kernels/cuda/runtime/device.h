// The device that the back end runs on.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace baton::kernels::cuda {

struct Device {
  int32_t multiprocessors = 0;
};

// The current device. kFailedPrecondition where there is none, or none that this build has code for
// (compute capability 9.0).
absl::StatusOr<Device> CurrentDevice();

}  // namespace baton::kernels::cuda
