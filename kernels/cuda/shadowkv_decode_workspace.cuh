// Scratch memory of the ops of a decode step in format `shadowkv`: so much for each sequence of a
// launch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cuda/shadowkv_plan.cuh"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

// Chunks of a KV head that a warp scores at a time: a head's sums are made of those of such tiles
// whatever the batch.
inline constexpr int32_t kSelectTile = 32;
// Keys of more chunks than these are kept in the workspace.
inline constexpr int32_t kSharedKeys = 8192;

struct SelectScratch {
  float* logits;             // [rows, heads, chunk_stride], -inf for static chunks
  float2* partials;          // [rows, heads, tiles]: largest logit, sum of weights relative to it
  uint32_t* keys;            // [rows, kv_heads, chunk_stride], of many chunks
  uint32_t* taken;           // [rows, kv_heads, taken_stride()]: bits of static and selected chunks
  float* maxima;             // [rows, heads]: largest logit of a chunk that is not taken
  unsigned long long* sums;  // [rows, heads, cluster_stride]: of 2^-40
  int64_t chunk_stride;
  int64_t cluster_stride;  // 0: no logits of clusters are asked for
  int32_t tiles;

  __host__ __device__ int64_t taken_stride() const { return chunk_stride / 32; }
};

// The shape of shadowkv_select's scratch.
struct SelectShape {
  int64_t heads;
  int64_t kv_heads;
  int64_t max_chunks;
  int64_t cluster_stride;

  explicit SelectShape(const ShadowKvSelectParams& params)
      : heads(params.heads),
        kv_heads(params.bounds.kv_heads),
        max_chunks(params.bounds.max_chunks),
        cluster_stride(params.cluster_logits == nullptr ? 0 : params.cluster_stride) {}
  explicit SelectShape(const ShadowKvWorkspaceSizes& sizes)
      : heads(sizes.heads),
        kv_heads(sizes.config.kv_heads),
        max_chunks(std::max<int64_t>(1, sizes.max_tokens / sizes.config.chunk_tokens)),
        cluster_stride(sizes.config.value_clusters) {}

  SelectScratch Carve(int64_t rows, Carver& carver) const {
    SelectScratch scratch = {};
    const bool clusters = cluster_stride > 0;
    scratch.tiles = static_cast<int32_t>((max_chunks + kSelectTile - 1) / kSelectTile);
    scratch.chunk_stride = (max_chunks + 31) / 32 * 32;
    scratch.cluster_stride = cluster_stride;
    scratch.logits = carver.Take<float>(rows * heads * scratch.chunk_stride);
    scratch.partials = carver.Take<float2>(rows * heads * scratch.tiles);
    scratch.keys = carver.Take<uint32_t>(
        max_chunks > kSharedKeys ? rows * kv_heads * scratch.chunk_stride : 0);
    scratch.taken = carver.Take<uint32_t>(clusters ? rows * kv_heads * scratch.taken_stride() : 0);
    scratch.maxima = carver.Take<float>(clusters ? rows * heads : 0);
    scratch.sums = carver.Take<unsigned long long>(rows * heads * cluster_stride);
    return scratch;
  }
  // Of so many sequences; of n no more than n times as much as of one.
  size_t Bytes(int64_t rows) const {
    Carver counter(nullptr);
    Carve(rows, counter);
    return counter.used();
  }
};

// Attention's scratch; a pair is a KV head of a sequence.
struct AttendScratch {
  HeadPlan* plans;  // [pairs]
  uint32_t* ended;  // [pairs]: blocks that have attended
  int32_t* slots;   // [pairs, slot_stride]: of the selected chunks
  int2* misses;     // [pairs, slot_stride]: chunk and slot of those to reconstruct
  int32_t* freed;   // [pairs, freed_stride]: slots of a cache that no selected chunk holds
  std::byte* keys;  // [pairs, key_bytes]: where there are no caches
  float* partials;  // [pairs, kMaxParts, partial_floats]
  int64_t slot_stride;
  int64_t freed_stride;
  int64_t key_bytes;
  int64_t partial_floats;
};

struct AttendShape {
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t slots;          // selected chunks at most
  int64_t budget_tokens;  // tokens of them
  bool cached;

  explicit AttendShape(const ShadowKvAttentionParams& params)
      : heads(params.heads),
        kv_heads(params.bounds.kv_heads),
        head_dim(params.bounds.head_dim),
        slots(params.chunk_ids_stride),
        budget_tokens(params.bounds.max_budget_tokens),
        cached(params.bounds.cached) {}
  explicit AttendShape(const ShadowKvWorkspaceSizes& sizes)
      : heads(sizes.heads),
        kv_heads(sizes.config.kv_heads),
        head_dim(sizes.config.head_dim),
        slots(sizes.config.budget_chunks()),
        budget_tokens(slots * sizes.config.chunk_tokens),
        cached(false) {}

  AttendScratch Carve(int64_t rows, Carver& carver) const {
    const int64_t pairs = rows * kv_heads;
    AttendScratch scratch = {};
    scratch.slot_stride = slots;
    scratch.freed_stride = budget_tokens;
    scratch.key_bytes = cached ? 0 : budget_tokens * head_dim * 2;
    scratch.partial_floats = PartialFloats(heads / kv_heads, head_dim);
    scratch.plans = carver.Take<HeadPlan>(pairs);
    scratch.ended = carver.Take<uint32_t>(pairs);
    scratch.slots = carver.Take<int32_t>(pairs * slots);
    scratch.misses = carver.Take<int2>(pairs * slots);
    scratch.freed = carver.Take<int32_t>(pairs * scratch.freed_stride);
    scratch.keys = carver.Take<std::byte>(pairs * scratch.key_bytes);
    scratch.partials = carver.Take<float>(pairs * kMaxParts * scratch.partial_floats);
    return scratch;
  }
  size_t Bytes(int64_t rows) const {
    Carver counter(nullptr);
    Carve(rows, counter);
    return counter.used();
  }
};

}  // namespace baton::kernels::cuda::shadowkv
