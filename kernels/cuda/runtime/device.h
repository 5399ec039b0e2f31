// The device that the back end runs on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::kernels::cuda {

struct Device {
  int32_t multiprocessors = 0;
  // Shared memory that a block may have when it asks for it.
  size_t block_shared_bytes = 0;
  // It runs code for Hopper (kernels/cuda/device_code.h), and not that for older devices.
  bool has_hopper_code = false;
  // It runs code that multiplies by warpgroups, which Hopper alone does.
  bool multiplies_by_warpgroups = false;
};

// The current device. kFailedPrecondition where there is none, or none that this build has code
// for, which is of compute capability 8.0 or higher.
absl::StatusOr<Device> CurrentDevice();

// Makes `device` the calling thread's: for threads that did not choose it themselves.
absl::Status MakeCurrent(int device);

}  // namespace baton::kernels::cuda
