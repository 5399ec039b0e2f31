// Values of the misses from memory of the host, which the device's threads read over the link like
// their own, to the sequences' caches. Pieces of 256 bytes to 2 KiB are too small for copies by the
// copy engine (shadowkv.md 2.5).
//
// The link's bandwidth times its round trip is some 72 KiB, so few blocks with many reads on their
// way keep it busy, and leave the device to the kernel that makes keys at the same time.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/early_launch.h"
#include "kernels/cuda/shadowkv_decode_workspace.cuh"
#include "kernels/cuda/shadowkv_device.cuh"
#include "kernels/cuda/shadowkv_parts.cuh"
#include "kernels/cuda/shadowkv_plan.cuh"
#include "kernels/cuda/shadowkv_value_cache.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {
namespace {

constexpr int32_t kThreads = 256;
constexpr int64_t kBlocks = 32;  // of the device
constexpr int32_t kAtOnce = 4;   // reads of a thread: 512 KiB of the device

// Values of a head's misses, in parts of 16 bytes, neighbouring ones by neighbouring threads. All
// threads.
__device__ void CopyMisses(const HeadPlan& plan, const int2* misses) {
  if (plan.slot_values == nullptr) return;
  const CodedArray values = plan.values;
  const CodedChunks chunks = plan.chunks;
  std::byte* const slots = plan.slot_values;
  const int32_t chunk_parts = values.chunk_bytes / 16;
  const int32_t parts = plan.misses * chunk_parts;
  for (int32_t begin = threadIdx.x; begin < parts; begin += kThreads * kAtOnce) {
    uint4 read[kAtOnce];
    uint4* targets[kAtOnce];
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      const int32_t part = begin + i * kThreads;
      targets[i] = nullptr;
      if (part >= parts) continue;
      const int2 miss = misses[part / chunk_parts];
      const int32_t at = part % chunk_parts;
      read[i] = __ldcs(reinterpret_cast<const uint4*>(values.Chunk(chunks, miss.x)) + at);
      targets[i] = reinterpret_cast<uint4*>(slots + int64_t{miss.y} * values.chunk_bytes) + at;
    }
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      if (targets[i] != nullptr) __stcg(targets[i], read[i]);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    CacheValueKernel(const __grid_constant__ AttendCall call) {
  WaitForPredecessors();
  LaunchDependents();
  const int64_t pairs = call.params.num_sequences * call.params.bounds.kv_heads;
  for (int64_t pair = blockIdx.x; pair < pairs; pair += gridDim.x) {
    CopyMisses(call.scratch.plans[pair], call.scratch.misses + pair * call.scratch.slot_stride);
  }
}

}  // namespace

absl::Status CacheValues(const DeviceQueue& queue, const AttendCall& call) {
  const int64_t pairs = call.params.num_sequences * call.params.bounds.kv_heads;
  const dim3 grid(static_cast<uint32_t>(std::min(pairs, kBlocks)));
  const cudaError_t error = LaunchEarly(queue, CacheValueKernel, grid, dim3(kThreads), 0, call);
  return ToStatus(error, "shadowkv_attention: values");
}

}  // namespace baton::kernels::cuda::shadowkv
