#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/shadowkv_exact.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {
namespace {

constexpr int kChooseThreads = 1024;
constexpr int kChooseWarps = kChooseThreads / 32;
constexpr int kCopyThreads = 256;

// Values of a digit of a score's bits.
constexpr int kDigits = 256;
constexpr int kDigitBits = 8;
constexpr int kLaneDigits = kDigits / 32;

// Bits in the order of the numbers; zeros of both signs are one.
__device__ uint32_t OrderedBits(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

// Scores of one head's chunks from the first that is no sink on.
struct Candidates {
  const float* scores;
  int64_t first;
  int64_t end;
};

// The `wanted`-th lowest score, and how many chunks of that very score belong to the lowest
// `wanted`; `wanted` is positive and no more than there are.
struct Threshold {
  uint32_t bits;
  int32_t equal;
};

// Finds the digit that has the `remaining`-th number of those counted in `counts`; one warp.
__device__ void FindDigit(const int32_t* counts, Threshold& found, int shift) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int32_t sum = 0;
  for (int i = 0; i < kLaneDigits; ++i) sum += counts[lane * kLaneDigits + i];
  const int32_t inclusive = InclusiveSum(sum);
  const int32_t remaining = found.equal;
  __syncwarp();
  int32_t before = inclusive - sum;
  if (before >= remaining || remaining > inclusive) return;
  int digit = lane * kLaneDigits;
  while (before + counts[digit] < remaining) before += counts[digit++];
  found.bits |= static_cast<uint32_t>(digit) << shift;
  found.equal = remaining - before;
}

// Digit by digit from the highest. All threads of the block call it.
__device__ Threshold FindThreshold(const Candidates& candidates, int32_t wanted) {
  __shared__ int32_t counts[kDigits];
  __shared__ Threshold found;
  if (threadIdx.x == 0) found = {.bits = 0, .equal = wanted};
  uint32_t known = 0;  // mask of the digits found
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    if (threadIdx.x < kDigits) counts[threadIdx.x] = 0;
    __syncthreads();
    const uint32_t prefix = found.bits;
    for (int64_t i = candidates.first + threadIdx.x; i < candidates.end; i += kChooseThreads) {
      const uint32_t bits = OrderedBits(candidates.scores[i]);
      if ((bits & known) == prefix) atomicAdd(&counts[(bits >> shift) % kDigits], 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) FindDigit(counts, found, shift);
    __syncthreads();
    known |= static_cast<uint32_t>(kDigits - 1) << shift;
  }
  return found;
}

// Writes the ids of the chunks below the threshold and of the first ones at it, ascending.
__device__ void WriteIds(const Candidates& candidates, const Threshold& threshold, int32_t* ids) {
  __shared__ int32_t warp_sums[kChooseWarps];
  int32_t below = 0;  // among the chunks before
  int32_t equal = 0;
  for (int64_t first = candidates.first; first < candidates.end; first += kChooseThreads) {
    const int64_t chunk = first + threadIdx.x;
    const bool exists = chunk < candidates.end;
    const uint32_t bits = exists ? OrderedBits(candidates.scores[chunk]) : ~0u;
    const bool is_below = exists && bits < threshold.bits;
    const bool is_equal = exists && bits == threshold.bits;
    int32_t total;
    const int32_t before =
        ExclusiveSum<kChooseWarps>((is_below ? 1 : 0) | (is_equal ? 1 << 16 : 0), warp_sums, total);
    const int32_t below_before = below + (before & 0xffff);
    const int32_t equal_before = equal + (before >> 16);
    if (is_below || (is_equal && equal_before < threshold.equal)) {
      ids[below_before + min(equal_before, threshold.equal)] = static_cast<int32_t>(chunk);
    }
    below += total & 0xffff;
    equal += total >> 16;
  }
}

// Block x chooses the static chunks of head x.
__global__ void __launch_bounds__(kChooseThreads)
    ChooseStatic(const __grid_constant__ ShadowKvEncodeParams params, const float* chunk_scores) {
  const ShadowKvPromptLayout& layout = params.layout;
  const int64_t head = blockIdx.x;
  const auto count = static_cast<int32_t>(layout.static_chunks);
  const int32_t sinks = min(layout.config.sink_chunks, count);
  int32_t* ids = reinterpret_cast<int32_t*>(params.prompt + layout.static_ids) + head * count;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < sinks; i += kChooseThreads) ids[i] = i;
  if (count == sinks) return;
  const Candidates candidates = {.scores = chunk_scores + head * layout.coded.chunks,
                                 .first = sinks,
                                 .end = layout.coded.chunks};
  WriteIds(candidates, FindThreshold(candidates, count - sinks), ids + sinks);
}

// A thread copies 16 bytes of a key and of its value: of static token or, behind those, local
// token `index` of head y.
__global__ void __launch_bounds__(kCopyThreads)
    CopyExact(const __grid_constant__ ShadowKvEncodeParams params) {
  const ShadowKvPromptLayout& layout = params.layout;
  const int64_t pieces = static_cast<int64_t>(layout.config.vector_bytes() / sizeof(uint4));
  const int64_t at = int64_t{blockIdx.x} * kCopyThreads + threadIdx.x;
  const int64_t index = at / pieces;
  const int64_t piece = at % pieces;
  const int64_t head = blockIdx.y;
  const int64_t chunk = layout.config.chunk_tokens;
  const int64_t static_tokens = layout.static_chunks * chunk;
  if (index >= static_tokens + layout.local_tokens) return;
  const bool is_static = index < static_tokens;
  const auto* ids = reinterpret_cast<const int32_t*>(params.prompt + layout.static_ids);
  const int64_t token =
      is_static ? ids[head * layout.static_chunks + index / chunk] * chunk + index % chunk
                : layout.coded.tokens + index - static_tokens;
  const int64_t vector =
      is_static ? head * static_tokens + index : head * layout.local_tokens + index - static_tokens;
  const PageTokens tokens = {params.pages, params.page_table};
  const auto copy = [&](const HeadVectors& source, size_t section) {
    reinterpret_cast<uint4*>(params.prompt + section)[vector * pieces + piece] =
        reinterpret_cast<const uint4*>(source.head(head))[piece];
  };
  copy(tokens.Keys(static_cast<int32_t>(token)),
       is_static ? layout.static_keys : layout.local_keys);
  copy(tokens.Values(static_cast<int32_t>(token)),
       is_static ? layout.static_values : layout.local_values);
}

}  // namespace

void WriteExact(const ShadowKvEncodeParams& params,
                const float* chunk_scores,
                cudaStream_t stream) {
  const ShadowKvPromptLayout& layout = params.layout;
  const auto heads = static_cast<uint32_t>(layout.config.kv_heads);
  const int64_t vectors = layout.static_chunks * layout.config.chunk_tokens + layout.local_tokens;
  const int64_t pieces =
      vectors * static_cast<int64_t>(layout.config.vector_bytes() / sizeof(uint4));
  if (layout.static_chunks > 0) {
    ChooseStatic<<<heads, kChooseThreads, 0, stream>>>(params, chunk_scores);
  }
  if (vectors > 0) {
    const auto blocks = static_cast<uint32_t>((pieces + kCopyThreads - 1) / kCopyThreads);
    CopyExact<<<dim3(blocks, heads), kCopyThreads, 0, stream>>>(params);
  }
}

}  // namespace baton::kernels::cuda::shadowkv
