// The rows are cut into segments, whose most likely tokens are looked for by a block each; a second
// kernel looks for the row's among those. 64 rows of 128,256 logits are 33 MB, most of it still in
// the second-level cache behind the product that wrote them.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/topk.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cuda {
namespace {

constexpr int32_t kThreads = 512;
constexpr int32_t kWarps = kThreads / kWarpLanes;
// Logits of a segment, and the most candidates of a row: keys in a block's shared memory.
constexpr int32_t kMostKeys = 8192;
constexpr int64_t kMostSegments = kMostKeys / kMaxTopLogits;

// The sum of exponentials relative to the largest logit.
struct ExpSum {
  float max = -INFINITY;
  float sum = 0.0f;
};

// A call as the kernels get it.
struct Call {
  TopLogitsParams params;
  int32_t segments = 0;
  int32_t* candidates = nullptr;  // [rows, segments, count], ids or -1
  ExpSum* sums = nullptr;         // [rows, segments]
};

struct Shared {
  uint32_t keys[kMostKeys];
  TopKShared<kThreads> top_k;
  int32_t taken[kMaxTopLogits];
  uint64_t sorted[kMaxTopLogits];
  float parts[kWarps];
};

// A NaN is never drawn; zeros of both signs are one.
__device__ uint32_t KeyOf(float logit) { return isnan(logit) ? 0u : OrderedKey(logit + 0.0f); }

// The logit of a key that is not 0.
__device__ float LogitOf(uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

// Over the block, in every thread; the bits are the same in every call.
__device__ float BlockMax(float value, float (&parts)[kWarps]) {
  parts[threadIdx.x / kWarpLanes] = WarpMax(value);
  __syncthreads();
  value = WarpMax(parts[threadIdx.x % kWarps]);
  __syncthreads();
  return value;
}
__device__ float BlockSum(float value, float (&parts)[kWarps]) {
  parts[threadIdx.x / kWarpLanes] = WarpSum(value);
  __syncthreads();
  value = 0.0f;
  for (int32_t warp = 0; warp < kWarps; ++warp) value += parts[warp];
  __syncthreads();
  return value;
}

// Brings a segment's keys to shared memory; all threads of the block see them afterwards.
__device__ ExpSum LoadKeys(const float* logits, int32_t count, Shared& shared) {
  float max = -INFINITY;
  for (int32_t i = threadIdx.x; i < count; i += kThreads) {
    const uint32_t key = KeyOf(logits[i]);
    shared.keys[i] = key;
    if (key != 0) max = fmaxf(max, LogitOf(key));
  }
  max = BlockMax(max, shared.parts);
  if (isinf(max)) return {.max = max, .sum = 0.0f};
  float sum = 0.0f;
  for (int32_t i = threadIdx.x; i < count; i += kThreads) {
    const uint32_t key = shared.keys[i];
    if (key != 0) sum += expf(LogitOf(key) - max);
  }
  return {.max = max, .sum = BlockSum(sum, shared.parts)};
}

// Writes what is most likely of `keys` in shared memory to taken[limit], as indices; -1 behind the
// last.
__device__ void Take(int32_t keys, int32_t limit, int32_t* taken, Shared& shared) {
  ShareRange(RangeOf<kThreads>(shared.keys, keys), shared.top_k);
  const Threshold threshold = FindThreshold(shared.keys, keys, min(limit, keys), shared.top_k);
  WriteTaken(shared.keys, keys, threshold, taken, limit, nullptr, shared.top_k);
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) SegmentKernel(const __grid_constant__ Call call) {
  __shared__ Shared shared;
  const TopLogitsParams& params = call.params;
  const int64_t begin = int64_t{blockIdx.x} * kMostKeys;
  const auto count = static_cast<int32_t>(min(params.vocab - begin, int64_t{kMostKeys}));
  const ExpSum sum =
      LoadKeys(params.logits + int64_t{blockIdx.y} * params.vocab + begin, count, shared);
  const int64_t segment = int64_t{blockIdx.y} * call.segments + blockIdx.x;
  if (threadIdx.x == 0) call.sums[segment] = sum;
  Take(count, params.count, shared.taken, shared);
  if (static_cast<int32_t>(threadIdx.x) < params.count) {
    const int32_t index = shared.taken[threadIdx.x];
    call.candidates[segment * params.count + threadIdx.x] =
        index < 0 || shared.keys[index] == 0 ? -1 : static_cast<int32_t>(begin) + index;
  }
}

// The logarithm of the sum over a row's segments, in their order.
__device__ float LogSum(const ExpSum* sums, int32_t segments) {
  float max = -INFINITY;
  for (int32_t i = 0; i < segments; ++i) max = fmaxf(max, sums[i].max);
  if (isinf(max)) return max;
  float sum = 0.0f;
  for (int32_t i = 0; i < segments; ++i) {
    sum = __fmaf_rn(sums[i].sum, expf(sums[i].max - max), sum);
  }
  return max + logf(sum);
}

// Sorts kMaxTopLogits numbers in shared memory, the largest first (Batcher's bitonic sort).
__device__ void Sort(uint64_t (&numbers)[kMaxTopLogits]) {
  const auto i = static_cast<int32_t>(threadIdx.x);
  for (int32_t run = 2; run <= kMaxTopLogits; run *= 2) {
    for (int32_t distance = run / 2; distance > 0; distance /= 2) {
      const int32_t other = i ^ distance;
      if (i < kMaxTopLogits && other > i) {
        const bool falling = (i & run) == 0;
        const uint64_t a = numbers[i];
        const uint64_t b = numbers[other];
        if ((a < b) == falling) {
          numbers[i] = b;
          numbers[other] = a;
        }
      }
      __syncthreads();
    }
  }
}

__global__ void __launch_bounds__(kThreads) RowKernel(const __grid_constant__ Call call) {
  __shared__ Shared shared;
  const TopLogitsParams& params = call.params;
  const int64_t row = blockIdx.x;
  const float* logits = params.logits + row * params.vocab;
  const int32_t keys = call.segments * params.count;
  const int32_t* candidates = call.candidates + row * keys;
  for (int32_t i = threadIdx.x; i < keys; i += kThreads) {
    shared.keys[i] = candidates[i] < 0 ? 0u : KeyOf(logits[candidates[i]]);
  }
  __syncthreads();
  Take(keys, params.count, shared.taken, shared);
  const auto place = static_cast<int32_t>(threadIdx.x);
  if (place < kMaxTopLogits) {
    // A key, and behind it the id so that the lower one is the larger number; 0 for no token.
    const int32_t index = place < params.count ? shared.taken[place] : -1;
    const uint64_t key = index < 0 ? 0u : shared.keys[index];
    shared.sorted[place] = key == 0 ? 0u : key << 32 | ~static_cast<uint32_t>(candidates[index]);
  }
  __syncthreads();
  Sort(shared.sorted);
  if (place < params.count) {
    const uint64_t number = shared.sorted[place];
    const int64_t at = row * params.count + place;
    params.ids[at] = number == 0 ? -1 : static_cast<int32_t>(~static_cast<uint32_t>(number));
    params.values[at] = number == 0 ? -INFINITY : LogitOf(static_cast<uint32_t>(number >> 32));
  }
  if (place == 0) params.log_sums[row] = LogSum(call.sums + row * call.segments, call.segments);
}

absl::Status Check(const TopLogitsParams& params, size_t workspace_bytes) {
  ParamChecker check("top_logits");
  check.Require(params.vocab <= kMostSegments * kMostKeys, "vocab", params.vocab, "is above 2^18");
  const int64_t segments = (params.vocab + kMostKeys - 1) / kMostKeys;
  const auto needed = static_cast<size_t>(params.rows * segments *
                                          (static_cast<int64_t>(sizeof(ExpSum)) +
                                           params.count * static_cast<int64_t>(sizeof(int32_t))));
  if (check.ok() && workspace_bytes < needed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "top_logits: workspace has ", workspace_bytes, " bytes but ", needed, " are needed"));
  }
  return check.status();
}

}  // namespace

absl::Status TopLogits(const ExecContext& context, const TopLogitsParams& params) {
  if (absl::Status status = Validate(params); !status.ok() || params.rows == 0) {
    return status;
  }
  const DeviceQueue& queue = *context.queue;
  if (absl::Status status = Check(params, queue.workspace().size()); !status.ok()) {
    return status;
  }
  const int64_t segments = (params.vocab + kMostKeys - 1) / kMostKeys;
  auto* sums = queue.workspace().as<ExpSum>();
  const Call call = {.params = params,
                     .segments = static_cast<int32_t>(segments),
                     .candidates = reinterpret_cast<int32_t*>(sums + params.rows * segments),
                     .sums = sums};
  const dim3 grid(static_cast<uint32_t>(segments), static_cast<uint32_t>(params.rows));
  SegmentKernel<<<grid, kThreads, 0, queue.stream()>>>(call);
  RowKernel<<<grid.y, kThreads, 0, queue.stream()>>>(call);
  return ToStatus(cudaGetLastError(), "top_logits");
}

}  // namespace baton::kernels::cuda
