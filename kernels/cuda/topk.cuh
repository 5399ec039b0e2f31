// The largest of many scores by one block: a radix select finds the least score that is taken, a
// second walk over the scores writes the ids of what is taken, which so come in ascending order.
// Among equal scores the lower ids are taken. Digits are counted until so few keys share the last
// one that each can be compared with all others, which one digit of some thousand keys mostly does.
#pragma once

#include <cstdint>

#include "kernels/cuda/warp.cuh"

namespace baton::kernels::cuda {

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

// Digits of the radix select.
inline constexpr int32_t kDigitBits = 9;
inline constexpr int32_t kDigits = 1 << kDigitBits;

// The most keys of a digit that are compared with each other.
inline constexpr int32_t kMostRanked = 128;

// Of a block of kThreads, at least kMostRanked.
template <int kThreads>
struct TopKShared {
  uint32_t histogram[kDigits];
  uint32_t ranked[kMostRanked];
  int2 counts[kThreads / kWarpLanes];  // above and equal, of each warp
  uint32_t least;                      // of the keys that can be chosen
  uint32_t most;
  uint32_t digit;
  int32_t above;   // keys of larger digits
  int32_t same;    // keys of the digit
  int32_t stored;  // in `ranked`
  Threshold threshold;
};

// Between which keys those are that can be chosen, for the digits: scores of one sign and a few
// magnitudes share their upper bits. least > most if there are none.
struct KeyRange {
  uint32_t least = ~0u;
  uint32_t most = 0;

  __device__ void Take(uint32_t key) {
    least = key == 0 ? least : min(least, key);
    most = max(most, key);
  }
};

// The range of the thread's share of keys[count].
template <int kThreads>
__device__ inline KeyRange RangeOf(const uint32_t* keys, int32_t count) {
  KeyRange range;
  for (int32_t i = threadIdx.x; i < count; i += kThreads) range.Take(keys[i]);
  return range;
}

// The range of all threads' keys, to `shared`. All threads; what they wrote before, to any memory,
// all of them see afterwards.
template <int kThreads>
__device__ inline void ShareRange(const KeyRange& own, TopKShared<kThreads>& shared) {
  if (threadIdx.x == 0) {
    shared.least = ~0u;
    shared.most = 0;
    shared.stored = 0;
  }
  const uint32_t least = __reduce_min_sync(kAllLanes, own.least);
  const uint32_t most = __reduce_max_sync(kAllLanes, own.most);
  __syncthreads();
  if (threadIdx.x % kWarpLanes == 0) {
    atomicMin(&shared.least, least);
    atomicMax(&shared.most, most);
  }
  __syncthreads();
}

// The largest digit such that `wanted` keys have it or a larger one; all keys, if they are fewer.
// One warp.
template <int kThreads>
__device__ inline void FindDigit(int32_t wanted, TopKShared<kThreads>& shared) {
  constexpr int32_t kOwn = kDigits / kWarpLanes;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  const int32_t largest = kDigits - 1 - kOwn * lane;  // the lane's digits are this and those below
  int32_t own = 0;
#pragma unroll
  for (int32_t i = 0; i < kOwn; ++i) own += static_cast<int32_t>(shared.histogram[largest - i]);
  int32_t up_to = own;
  for (int32_t distance = 1; distance < kWarpLanes; distance *= 2) {
    const int32_t other = __shfl_up_sync(kAllLanes, up_to, distance);
    up_to += lane >= distance ? other : 0;
  }
  if (lane == kWarpLanes - 1 && up_to < wanted) {
    shared.above = up_to;
    shared.digit = kDigits;
  }
  int32_t above = up_to - own;
  if (above >= wanted || up_to < wanted) return;
  for (int32_t digit = largest;; --digit) {
    const auto count = static_cast<int32_t>(shared.histogram[digit]);
    if (above + count >= wanted) {
      shared.digit = static_cast<uint32_t>(digit);
      shared.above = above;
      shared.same = count;
      return;
    }
    above += count;
  }
}

// Counts the keys that are `prefix` above the least one, but for their lowest `bits` bits, by the
// bits from `shift` on of what is left. All threads.
template <int kThreads>
__device__ inline void CountDigits(const uint32_t* keys,
                                   int32_t count,
                                   uint32_t prefix,
                                   int32_t bits,
                                   int32_t shift,
                                   TopKShared<kThreads>& shared) {
  const uint32_t least = shared.least;
  const uint32_t known = bits == 32 ? 0u : ~0u << bits;
  for (int32_t i = threadIdx.x; i < kDigits; i += kThreads) shared.histogram[i] = 0;
  __syncthreads();
#pragma unroll 4
  for (int32_t i = threadIdx.x; i < count; i += kThreads) {
    const uint32_t key = keys[i];
    const uint32_t rest = key - least;
    if (key != 0 && (rest & known) == prefix) {
      atomicAdd(&shared.histogram[(rest & ~known) >> shift], 1u);
    }
  }
  __syncthreads();
}

// The threshold of the `wanted` largest of those keys, at least so many and at most kMostRanked,
// that are `prefix` above the least one but for their lowest `bits` bits (below 32). All threads.
template <int kThreads>
__device__ inline Threshold RankKeys(const uint32_t* keys,
                                     int32_t count,
                                     uint32_t prefix,
                                     int32_t bits,
                                     int32_t wanted,
                                     TopKShared<kThreads>& shared) {
  static_assert(kThreads >= kMostRanked);
  const uint32_t least = shared.least;
#pragma unroll 4
  for (int32_t i = threadIdx.x; i < count; i += kThreads) {
    const uint32_t key = keys[i];
    if (key != 0 && (key - least) >> bits == prefix >> bits) {
      shared.ranked[atomicAdd(&shared.stored, 1)] = key;
    }
  }
  __syncthreads();
  const auto own = static_cast<int32_t>(threadIdx.x);
  const int32_t stored = shared.stored;
  if (own < stored) {
    const uint32_t key = shared.ranked[own];
    int32_t above = 0;
    int32_t equal = 0;
    bool first = true;  // of those that are equal
#pragma unroll 4
    for (int32_t i = 0; i < stored; ++i) {
      const uint32_t other = shared.ranked[i];
      above += other > key ? 1 : 0;
      equal += other == key ? 1 : 0;
      first = first && (other != key || i >= own);
    }
    if (first && above < wanted && wanted <= above + equal) {
      shared.threshold = {.key = key, .equal = wanted - above};
    }
  }
  __syncthreads();
  return shared.threshold;
}

// The threshold of the `wanted` (1 to count) largest of keys[count], whose range is shared. All
// threads of the block; keys in shared or global memory that all of them see.
template <int kThreads>
__device__ inline Threshold FindThreshold(const uint32_t* keys,
                                          int32_t count,
                                          int32_t wanted,
                                          TopKShared<kThreads>& shared) {
  const uint32_t least = shared.least;
  if (least > shared.most) return {.key = 0, .equal = wanted};
  uint32_t prefix = 0;  // of what is above the least key
  for (int32_t bits = 32 - __clz(static_cast<int>(shared.most - least));;) {
    const int32_t shift = max(bits - kDigitBits, 0);
    CountDigits(keys, count, prefix, bits, shift, shared);
    if (threadIdx.x < kWarpLanes) FindDigit(wanted, shared);
    __syncthreads();
    wanted -= shared.above;
    if (shared.digit == kDigits) return {.key = 0, .equal = wanted};
    prefix |= shared.digit << shift;
    if (shift == 0) return {.key = least + prefix, .equal = wanted};
    if (shared.same <= kMostRanked) return RankKeys(keys, count, prefix, shift, wanted, shared);
    bits = shift;
  }
}

// Keys of a thread's warp: the warps of a block share the keys in runs of whole words of ids.
struct WarpKeys {
  int32_t begin;
  int32_t end;

  __device__ WarpKeys(int32_t count, int32_t warps) {
    const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
    const int32_t words = (count + kWarpLanes - 1) / kWarpLanes;
    const int32_t of_warp = (words + warps - 1) / warps * kWarpLanes;
    begin = min(warp * of_warp, count);
    end = min(begin + of_warp, count);
  }
};

// How many keys of a run are above the threshold, and equal to it. The warp.
struct TakenCounts {
  int32_t above = 0;
  int32_t equal = 0;

  __device__ TakenCounts(const uint32_t* keys, const WarpKeys& run, uint32_t threshold) {
    const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
#pragma unroll 4
    for (int32_t id = run.begin + lane; id < run.end; id += kWarpLanes) {
      above += keys[id] > threshold ? 1 : 0;
      equal += keys[id] == threshold ? 1 : 0;
    }
    above = __reduce_add_sync(kAllLanes, above);
    equal = __reduce_add_sync(kAllLanes, equal);
  }
};

// Writes the ids of what is taken, ascending, to ids[limit], then -1. `taken` gets a bit for each
// key that is taken or 0; null: nobody asks. All threads of the block.
template <int kThreads>
__device__ inline void WriteTaken(const uint32_t* keys,
                                  int32_t count,
                                  const Threshold& threshold,
                                  int32_t* ids,
                                  int64_t limit,
                                  uint32_t* taken,
                                  TopKShared<kThreads>& shared) {
  constexpr int32_t kWarps = kThreads / kWarpLanes;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  const uint32_t lower = (1u << lane) - 1u;
  const WarpKeys run(count, kWarps);
  const TakenCounts own(keys, run, threshold.key);
  if (lane == 0) shared.counts[warp] = {own.above, own.equal};
  __syncthreads();
  int32_t above = 0;
  int32_t equal = 0;
  int32_t all_above = 0;
  int32_t all_equal = 0;
#pragma unroll
  for (int32_t w = 0; w < kWarps; ++w) {
    above += w < warp ? shared.counts[w].x : 0;
    equal += w < warp ? shared.counts[w].y : 0;
    all_above += shared.counts[w].x;
    all_equal += shared.counts[w].y;
  }
  for (int32_t begin = run.begin; begin < run.end; begin += kWarpLanes) {
    const int32_t id = begin + lane;
    const bool exists = id < run.end;
    const uint32_t key = exists ? keys[id] : 0u;
    const bool is_above = exists && key > threshold.key;
    const bool is_equal = exists && key == threshold.key;
    const uint32_t above_votes = __ballot_sync(kAllLanes, is_above);
    const uint32_t equal_votes = __ballot_sync(kAllLanes, is_equal);
    const int32_t equal_before = equal + __popc(equal_votes & lower);
    const bool takes = is_above || (is_equal && equal_before < threshold.equal);
    const int32_t place = above + __popc(above_votes & lower) + min(equal_before, threshold.equal);
    if (takes && place < limit) ids[place] = id;
    const uint32_t votes = __ballot_sync(kAllLanes, takes || (exists && key == 0));
    if (taken != nullptr && lane == 0) taken[id / kWarpLanes] = votes;
    above += __popc(above_votes);
    equal += __popc(equal_votes);
  }
  for (int64_t i = all_above + min(all_equal, threshold.equal) + int64_t{threadIdx.x}; i < limit;
       i += kThreads) {
    ids[i] = -1;
  }
}

}  // namespace baton::kernels::cuda
