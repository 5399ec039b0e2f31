// The largest of many scores by one block: a radix select finds the least score that is taken, a
// second walk over the scores writes the ids of what is taken, which so come in ascending order.
// Among equal scores the lower ids are taken.
#pragma once

#include <cstdint>

#include "kernels/cuda/warp.cuh"

namespace baton::kernels::cuda {

inline constexpr int32_t kTopKThreads = 512;

// For each thread how many lower threads have its flags set, and how many of all.
struct FlagRanks {
  int32_t first;
  int32_t second;
  int32_t first_total;
  int32_t second_total;
};

// All threads of a block of kThreads; `counts` is shared memory of this function alone. What the
// threads wrote before, to any memory, all of them see afterwards.
template <int kThreads>
__device__ inline FlagRanks RankFlags(bool first,
                                      bool second,
                                      uint32_t (&counts)[kThreads / kWarpLanes]) {
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  const uint32_t below = (1u << (threadIdx.x % kWarpLanes)) - 1u;
  const uint32_t first_votes = __ballot_sync(kAllLanes, first);
  const uint32_t second_votes = __ballot_sync(kAllLanes, second);
  __syncthreads();  // the counts of the call before have been read
  if (below == 0) {
    counts[warp] = static_cast<uint32_t>(__popc(first_votes) | __popc(second_votes) << 16);
  }
  __syncthreads();
  uint32_t before = 0;
  uint32_t total = 0;
#pragma unroll
  for (int32_t w = 0; w < kThreads / kWarpLanes; ++w) {
    before += w < warp ? counts[w] : 0;
    total += counts[w];
  }
  return {.first = static_cast<int32_t>(before & 0xffffu) + __popc(first_votes & below),
          .second = static_cast<int32_t>(before >> 16) + __popc(second_votes & below),
          .first_total = static_cast<int32_t>(total & 0xffffu),
          .second_total = static_cast<int32_t>(total >> 16)};
}

// Orders as the scores do; 0, below all others, is that of -inf, what cannot be chosen.
__device__ inline uint32_t OrderedKey(float score) {
  const uint32_t bits = __float_as_uint(score);
  return score == -INFINITY ? 0u : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// Which keys are taken: all above `key`, and of those equal to it the first `equal`.
struct Threshold {
  uint32_t key;
  int32_t equal;
};

struct TopKShared {
  uint32_t histogram[256];
  uint32_t counts[kTopKThreads / kWarpLanes];
  uint32_t digit;
  int32_t above;  // keys of larger digits
};

// The largest digit such that `wanted` keys have it or a larger one. One warp.
__device__ inline void FindDigit(int32_t wanted, TopKShared& shared) {
  constexpr int32_t kOwn = 256 / kWarpLanes;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  const int32_t largest = 255 - kOwn * lane;  // the lane's digits are this and those below it
  int32_t own = 0;
  for (int32_t i = 0; i < kOwn; ++i) own += static_cast<int32_t>(shared.histogram[largest - i]);
  int32_t up_to = own;
  for (int32_t distance = 1; distance < kWarpLanes; distance *= 2) {
    const int32_t other = __shfl_up_sync(kAllLanes, up_to, distance);
    up_to += lane >= distance ? other : 0;
  }
  int32_t above = up_to - own;
  if (above >= wanted || up_to < wanted) return;
  for (int32_t digit = largest;; --digit) {
    const auto count = static_cast<int32_t>(shared.histogram[digit]);
    if (above + count >= wanted) {
      shared.digit = static_cast<uint32_t>(digit);
      shared.above = above;
      return;
    }
    above += count;
  }
}

// The threshold of the `wanted` (1 to count) largest of keys[count]. All threads of the block; keys
// in shared or global memory that all of them see.
__device__ inline Threshold FindThreshold(const uint32_t* keys,
                                          int32_t count,
                                          int32_t wanted,
                                          TopKShared& shared) {
  uint32_t prefix = 0;
  for (int32_t shift = 24; shift >= 0; shift -= 8) {
    for (int32_t i = threadIdx.x; i < 256; i += kTopKThreads) shared.histogram[i] = 0;
    __syncthreads();
    const uint32_t known = shift == 24 ? 0u : ~0u << (shift + 8);
    for (int32_t i = threadIdx.x; i < count; i += kTopKThreads) {
      const uint32_t key = keys[i];
      if ((key & known) == prefix) atomicAdd(&shared.histogram[(key >> shift) & 255u], 1u);
    }
    __syncthreads();
    if (threadIdx.x < kWarpLanes) FindDigit(wanted, shared);
    __syncthreads();
    prefix |= shared.digit << shift;
    wanted -= shared.above;
  }
  return {.key = prefix, .equal = wanted};
}

// Writes the ids of what is taken, ascending, to ids[limit], then -1. `taken` gets a bit for each
// key that is taken or 0; null: nobody asks. All threads of the block.
__device__ inline void WriteTaken(const uint32_t* keys,
                                  int32_t count,
                                  const Threshold& threshold,
                                  int32_t* ids,
                                  int64_t limit,
                                  uint32_t* taken,
                                  TopKShared& shared) {
  int32_t above = 0;
  int32_t equal = 0;
  for (int32_t begin = 0; begin < count; begin += kTopKThreads) {
    const int32_t id = begin + static_cast<int32_t>(threadIdx.x);
    const uint32_t key = id < count ? keys[id] : 0u;
    const bool is_above = id < count && key > threshold.key;
    const bool is_equal = id < count && key == threshold.key;
    const FlagRanks ranks = RankFlags<kTopKThreads>(is_above, is_equal, shared.counts);
    const int32_t equal_before = min(equal + ranks.second, threshold.equal);
    const bool takes = is_above || (is_equal && equal + ranks.second < threshold.equal);
    const int32_t place = above + ranks.first + equal_before;
    if (takes && place < limit) ids[place] = id;
    const uint32_t votes = __ballot_sync(kAllLanes, takes || (id < count && key == 0));
    if (taken != nullptr && threadIdx.x % kWarpLanes == 0 && id < count) {
      taken[id / kWarpLanes] = votes;
    }
    above += ranks.first_total;
    equal += ranks.second_total;
  }
  for (int64_t i = above + min(equal, threshold.equal) + int64_t{threadIdx.x}; i < limit;
       i += kTopKThreads) {
    ids[i] = -1;
  }
}

}  // namespace baton::kernels::cuda
