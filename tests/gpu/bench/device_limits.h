// What the device can do, measured in the run whose figures are compared with it.
#pragma once

#include "absl/status/statusor.h"

#include "kernels/cuda/runtime/device_queue.h"

namespace baton::kernels::cuda {

struct DeviceLimits {
  double read_bytes_per_second = 0.0;  // of device memory, reads alone
};

// Best of several passes over 8 GiB.
absl::StatusOr<DeviceLimits> MeasureDevice(const DeviceQueue& queue);

}  // namespace baton::kernels::cuda
