// What one KV head of one sequence attends in a decode step, where it lies, and how the work is
// cut. A block for each head works it out once, and matches the selected chunks to the head's cache
// as ShadowKvPlanCache does, to the bit; the kernels after it only look things up.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/shadowkv_device.cuh"
#include "kernels/cuda/topk.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

// Tokens of a stage in shared memory; splits are whole stages.
inline constexpr int32_t kStage = 64;
// A split has so many tokens, or more where that would make more than kMaxSplits of them: its
// length follows from the head's own tokens.
inline constexpr int32_t kLeastSplit = 256;
inline constexpr int32_t kMaxSplits = 32;
// Parts of a head's result: its splits, and the value clusters.
inline constexpr int32_t kMaxParts = kMaxSplits + 1;

constexpr int64_t SplitTokens(int64_t tokens) {
  const int64_t stages = (tokens + kStage - 1) / kStage;
  const int64_t even = (stages + kMaxSplits - 1) / kMaxSplits * kStage;
  return even > kLeastSplit ? even : kLeastSplit;
}
constexpr int64_t Splits(int64_t tokens) {
  return (tokens + SplitTokens(tokens) - 1) / SplitTokens(tokens);
}

// Floats of a part: values [group, head_dim], maxima [group], sums [group].
__host__ __device__ constexpr int64_t PartialFloats(int64_t group, int64_t head_dim) {
  return (group * (head_dim + 2) + 3) / 4 * 4;
}

// The tokens in the order in which they are attended: static, exact of the prompt, exact of the
// tail's ring, selected. Selected ones begin with a stage; there are none between exact_end and it.
struct alignas(16) HeadPlan {
  int32_t static_end;  // tokens before this one are static
  int32_t local_end;
  int32_t exact_end;
  int32_t selected_begin;
  int32_t tokens;    // end of the last ones
  int32_t selected;  // chunks
  int32_t misses;    // of them, to be reconstructed
  int32_t clusters;  // that take part
  int32_t value_bits;
  const std::byte* static_keys;  // rows of head_dim bf16, like the next ones
  const std::byte* static_values;
  const std::byte* local_keys;  // of the first exact token
  const std::byte* local_values;
  const std::byte* ring_keys;  // of slot 0
  int64_t ring_bytes;          // from slot to slot; a value is half of it behind its key
  int32_t ring_first;          // slot of the first exact token of the ring
  int32_t ring_slots;
  CodedChunks chunks;
  CodedArray values;  // bf16 or codes
  // [slots][chunk tokens] values as stored, of a cache; null: values are read where they lie.
  std::byte* slot_values;
  CodedArray value_scales;
  std::byte* keys;  // [slots][chunk tokens][head_dim] bf16: a cache's, or of the workspace
  const std::byte* cluster_values;
  // What keys are reconstructed from.
  const std::byte* basis;  // the head's columns; rows are basis_bytes apart
  int64_t basis_bytes;
  CodedArray coefficients;
  CodedArray coefficient_scales;
  int32_t rank;
  int32_t row;  // of queries, results and lse
  bool int8_coefficients;
};

// The exact tokens of a head. One thread.
__device__ inline void PlanExact(const SequencePlaces& places, int64_t head, HeadPlan& plan) {
  const ShadowKvPromptLayout& layout = places.layout();
  const ShadowKvConfig& config = places.config();
  const auto row = static_cast<int64_t>(config.vector_bytes());
  const int64_t static_tokens = layout.static_chunks * config.chunk_tokens;
  plan.static_keys = places.Prompt(layout.static_keys) + head * static_tokens * row;
  plan.static_values = places.Prompt(layout.static_values) + head * static_tokens * row;
  // Positions [first, tokens) are exact; those of the prompt are its last ones.
  const int64_t first = places.tail().CodedTokensAt(places.tokens());
  const int64_t local = head * layout.local_tokens + first - layout.coded.tokens;
  plan.local_keys = places.Prompt(layout.local_keys) + local * row;
  plan.local_values = places.Prompt(layout.local_values) + local * row;
  const int64_t in_prompt = max(int64_t{0}, layout.prompt_tokens - first);
  const int64_t ring_position = max(first, layout.prompt_tokens);
  plan.ring_keys = places.TailKey(head);
  plan.ring_bytes = static_cast<int64_t>(places.tail().slot_bytes());
  plan.ring_slots = static_cast<int32_t>(places.tail().exact_slots);
  plan.ring_first = static_cast<int32_t>(
      static_cast<int64_t>(places.tail().exact_key(ring_position, 0)) / plan.ring_bytes);
  plan.static_end = static_cast<int32_t>(static_tokens);
  plan.local_end = plan.static_end + static_cast<int32_t>(in_prompt);
  plan.exact_end = plan.static_end + static_cast<int32_t>(places.tokens() - first);
  plan.selected_begin = (plan.exact_end + kStage - 1) / kStage * kStage;
}

// The coded tokens of a head. One thread.
__device__ inline void PlanCoded(const SequencePlaces& places, int64_t head, HeadPlan& plan) {
  const ShadowKvPromptLayout& layout = places.layout();
  const ShadowKvConfig& config = places.config();
  const auto row = static_cast<int64_t>(config.vector_bytes());
  plan.chunks = places.Chunks(INT32_MAX);
  plan.value_bits = config.value_bits;
  plan.values = places.Values(head);
  plan.value_scales = places.TokenRows(&ShadowKvCodedLayout::value_scales, head, 4);
  plan.basis = places.Prompt(layout.basis) + head * row;
  plan.basis_bytes = config.kv_heads * row;
  plan.coefficients = places.Coefficients();
  plan.coefficient_scales = places.CoefficientScales();
  plan.rank = config.rank;
  plan.int8_coefficients = config.int8_coefficients;
  plan.clusters = config.value_clusters;
  plan.cluster_values = places.Prompt(layout.cluster_values) + head * config.value_clusters * row;
}

// The first index in ascending ids[count] whose id is at least `id`; `count` if none.
__device__ inline int32_t LowerBound(const int32_t* ids, int32_t count, int32_t id) {
  int32_t low = 0;
  while (count > 0) {
    const int32_t half = count / 2;
    const bool below = ids[low + half] < id;
    low += below ? half + 1 : 0;
    count = below ? count - half - 1 : half;
  }
  return low;
}

inline constexpr int32_t kPlanThreads = 256;
inline constexpr int32_t kPlanBlocks = 5;  // of a multiprocessor
// Ids of no more chunks than these are searched in shared memory.
inline constexpr int32_t kPlanIds = 512;

// A head's table in a cache, [count]; without a cache, none.
struct CacheTable {
  int32_t* ids;  // 0: no chunk, else it + 1
  int32_t* slots;
  int32_t count;

  // Slots of a table that names no chunk need not have been written.
  __device__ int32_t Slot(int32_t entry, int32_t used) const {
    return used == 0 ? entry : slots[entry];
  }
};

struct PlanShared {
  HeadPlan plan;
  CacheTable table;
  uint32_t counts[kPlanThreads / kWarpLanes];
  int32_t id_limit;  // ids to look at
  int32_t selected;  // of them
  int32_t used;      // entries of the cache's table that name chunks
  int32_t ids[kPlanIds];
  int32_t table_ids[kPlanIds];
};

// Copies ids[count] to shared memory, if there is room, and returns where they are to be looked for
// from then on. All threads; each of them has those at its own places, every kPlanThreads-th.
__device__ inline const int32_t* StageIds(const int32_t* ids,
                                          int64_t count,
                                          int32_t (&room)[kPlanIds]) {
  if (count > kPlanIds) return ids;
  for (int32_t i = threadIdx.x; i < count; i += kPlanThreads) room[i] = ids[i];
  return room;
}

// Where the head's keys, values that are apart if caches have them, and its table are: in its
// sequence's cache, or keys in `scratch`. One thread.
__device__ inline void PlanKeys(const SequencePlaces& places,
                                int64_t head,
                                std::byte* cache,
                                bool caches_values,
                                std::byte* scratch,
                                PlanShared& shared) {
  shared.table = {};
  shared.plan.keys = scratch;
  shared.plan.slot_values = nullptr;
  if (cache == nullptr) return;
  const ShadowKvConfig& config = places.config();
  const ShadowKvCacheLayout layout(config, ShadowKvCachedValues::kStored);
  const int64_t first = head * layout.slots_per_head;
  const int64_t first_token = first * config.chunk_tokens;
  shared.table = {.ids = reinterpret_cast<int32_t*>(cache + layout.ids) + first,
                  .slots = reinterpret_cast<int32_t*>(cache + layout.slots) + first,
                  .count = static_cast<int32_t>(layout.slots_per_head)};
  shared.plan.keys =
      cache + layout.keys + first_token * static_cast<int64_t>(config.vector_bytes());
  if (caches_values && config.values_apart) {
    shared.plan.slot_values =
        cache + layout.values + first_token * static_cast<int64_t>(config.coded_value_bytes());
  }
}

// Number of ids before the first that is `end` or less. All threads, each of which looks at its own
// places; `result` is `limit` before.
__device__ inline void CountBefore(const int32_t* ids,
                                   int32_t limit,
                                   int32_t end,
                                   int32_t* result) {
  for (int32_t i = threadIdx.x; i < limit; i += kPlanThreads) {
    if (ids[i] <= end) {
      atomicMin(result, i);
      break;
    }
  }
}

// Collects the slots of entries that no selected chunk is in, in the order of the entries;
// `table_ids` are those of the table.
__device__ inline void FreeSlots(const CacheTable& table,
                                 const int32_t* table_ids,
                                 const int32_t* ids,
                                 int32_t* freed,
                                 PlanShared& shared) {
  int32_t before = 0;
  for (int32_t begin = 0; begin < table.count; begin += kPlanThreads) {
    const int32_t entry = begin + static_cast<int32_t>(threadIdx.x);
    bool free = entry < table.count;
    if (entry < shared.used) {
      const int32_t id = table_ids[entry] - 1;
      const int32_t place = LowerBound(ids, shared.selected, id);
      free = place >= shared.selected || ids[place] != id;
    }
    const FlagRanks ranks = RankFlags<kPlanThreads>(free, false, shared.counts);
    if (free) freed[before + ranks.first] = table.Slot(entry, shared.used);
    before += ranks.first_total;
  }
}

// Finds a slot for every selected chunk, the one that it is in or else the next that is free, and
// lists those that are to be reconstructed. Returns how many they are. `table` has count 0 without
// a cache: chunk i gets slot i.
__device__ inline int32_t PlaceChunks(const CacheTable& table,
                                      const int32_t* table_ids,
                                      const int32_t* ids,
                                      const int32_t* freed,
                                      int32_t* slots,
                                      int2* misses,
                                      PlanShared& shared) {
  int32_t before = 0;
  for (int32_t begin = 0; begin < shared.selected; begin += kPlanThreads) {
    const int32_t i = begin + static_cast<int32_t>(threadIdx.x);
    const bool valid = i < shared.selected;
    bool hit = false;
    int32_t slot = i;
    if (valid && shared.used > 0) {
      const int32_t entry = LowerBound(table_ids, shared.used, ids[i] + 1);
      hit = entry < shared.used && table_ids[entry] == ids[i] + 1;
      if (hit) slot = table.slots[entry];
    }
    const FlagRanks ranks = RankFlags<kPlanThreads>(valid && !hit, false, shared.counts);
    if (valid && !hit) {
      const int32_t rank = before + ranks.first;
      if (table.count > 0) slot = freed[rank];
      misses[rank] = make_int2(ids[i], slot);
    }
    if (valid) slots[i] = slot;
    before += ranks.first_total;
  }
  return before;
}

// Rewrites the table for the next step. All threads, after all have read it.
__device__ inline void WriteTable(const CacheTable& table,
                                  const int32_t* ids,
                                  const int32_t* slots,
                                  const int32_t* freed,
                                  int32_t selected,
                                  int32_t misses) {
  for (int32_t i = threadIdx.x; i < table.count; i += kPlanThreads) {
    table.ids[i] = i < selected ? ids[i] + 1 : 0;
    table.slots[i] = i < selected ? slots[i] : freed[misses + i - selected];
  }
}

}  // namespace baton::kernels::cuda::shadowkv
