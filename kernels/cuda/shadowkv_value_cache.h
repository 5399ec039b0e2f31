// Values of selected chunks that are apart, brought to where attention finds them.
#pragma once

#include "absl/status/status.h"

#include "kernels/cuda/runtime/device_queue.h"

namespace baton::kernels::cuda::shadowkv {

struct AttendCall;

// Gives the queue the copies of the values of the misses that the call's plans name, to the slots
// of the caches that they name; for calls whose bounds have caches_values. Copies go on beside the
// kernel behind: one that is launched early may read plans at once, but its end has to wait for
// that of the copies. Errors: those of the launch.
absl::Status CacheValues(const DeviceQueue& queue, const AttendCall& call);

}  // namespace baton::kernels::cuda::shadowkv
