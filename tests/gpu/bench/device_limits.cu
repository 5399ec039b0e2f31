#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"
#include "tests/gpu/bench/device_limits.h"
#include "tests/gpu/bench/timer.h"

namespace baton::kernels::cuda {
namespace {

// Reads everything; writes only what no data is likely to hold, so that no read can be left out.
__global__ void ReadKernel(const uint4* data, int64_t count, uint32_t* sink) {
  uint4 folded = {};
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 7 * stride < count; i += 8 * stride) {
    uint4 loaded[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) loaded[k] = __ldcs(data + i + k * stride);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      folded.x ^= loaded[k].x;
      folded.y ^= loaded[k].y;
      folded.z ^= loaded[k].z;
      folded.w ^= loaded[k].w;
    }
  }
  if ((folded.x ^ folded.y ^ folded.z ^ folded.w) == 0x9e3779b9u) *sink = folded.x;
}

}  // namespace

absl::StatusOr<DeviceLimits> MeasureDevice(const DeviceQueue& queue) {
  constexpr size_t kBytes = size_t{8} << 30;
  absl::StatusOr<DeviceMemory> memory = DeviceMemory::Allocate(kBytes);
  if (!memory.ok()) {
    return memory.status();
  }
  DeviceLimits limits;
  for (int pass = 0; pass < 5; ++pass) {
    const Timer timer(queue);
    ReadKernel<<<queue.multiprocessors() * 4, 512, 0, queue.stream()>>>(
        memory->as<uint4>(), kBytes / sizeof(uint4), queue.workspace().as<uint32_t>());
    const double seconds = timer.Seconds();
    limits.read_bytes_per_second =
        std::max(limits.read_bytes_per_second, static_cast<double>(kBytes) / seconds);
  }
  if (absl::Status status = ToStatus(cudaGetLastError(), "measure the device"); !status.ok()) {
    return status;
  }
  return limits;
}

}  // namespace baton::kernels::cuda
