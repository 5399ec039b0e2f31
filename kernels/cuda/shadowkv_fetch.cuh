// How tokens of a head come to shared memory, in stages of 64 as paged_attention_tile.cuh has them:
// keys and values from wherever the plan says. Values in codes are brought as they are, to the
// front of their rows, and become bf16 there: reading codes each step takes less of the memory than
// keeping the values of a step in bf16 would.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/paged_attention_tile.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/shadowkv_plan.cuh"

namespace baton::kernels::cuda::shadowkv {

inline constexpr int32_t kAttendThreads = 128;
inline constexpr int32_t kAttendBlocks = 3;  // of a multiprocessor
inline constexpr int32_t kStages = 2;
static_assert(kStage == paged::kStageTokens);

struct TokenSource {
  const std::byte* key;  // null: there is no such token
  const std::byte* value;
  const std::byte* range;  // scale and zero of a value in codes, else null
};

// Tokens [begin, end) of a head.
struct TokenRange {
  int32_t begin;
  int32_t end;

  __device__ int32_t stages() const { return (end - begin + kStage - 1) / kStage; }
};

// Where a token of a selected chunk is; zeros for others.
struct StagePlace {
  int32_t id = 0;
  int32_t slot = 0;
};

// What a head's tokens are looked up in.
struct HeadTokens {
  const HeadPlan& plan;
  const int32_t* ids;    // of the selected chunks
  const int32_t* slots;  // of their keys

  // Whether the token's value is in codes.
  __device__ bool Coded(int32_t token) const {
    return plan.value_bits < 16 && token >= plan.exact_end;
  }

  // Whether the values of a stage are all in codes.
  __device__ bool CodedStage(const TokenRange& range, int32_t stage) const {
    return Coded(range.begin + stage * kStage);
  }

  // Which chunk a selected token is of, and the slot of its keys.
  __device__ StagePlace Peek(int32_t token) const {
    if (token < plan.exact_end || token >= plan.tokens) return {};
    const int32_t place = (token - plan.exact_end) >> plan.chunks.token_shift;
    return {.id = ids[place], .slot = slots[place]};
  }

  // `peeked`: of the token.
  template <int kHeadDim>
  __device__ TokenSource Find(int32_t token, const StagePlace& peeked) const {
    constexpr int64_t kRowBytes = 2 * kHeadDim;
    if (token < plan.static_end) {
      return {plan.static_keys + token * kRowBytes, plan.static_values + token * kRowBytes};
    }
    if (token < plan.local_end) {
      const int64_t offset = (token - plan.static_end) * kRowBytes;
      return {plan.local_keys + offset, plan.local_values + offset};
    }
    if (token < plan.exact_end) {
      int32_t slot = plan.ring_first + token - plan.local_end;
      if (slot >= plan.ring_slots) slot -= plan.ring_slots;
      const std::byte* key = plan.ring_keys + slot * plan.ring_bytes;
      return {key, key + plan.ring_bytes / 2};
    }
    const int32_t in_chunk = (token - plan.exact_end) & (plan.chunks.tokens() - 1);
    const int64_t row = (int64_t{peeked.slot} << plan.chunks.token_shift) + in_chunk;
    const bool coded = plan.value_bits < 16;
    const int32_t value_bytes = kHeadDim * plan.value_bits / 8;
    return {plan.keys + row * kRowBytes,
            plan.values.Chunk(plan.chunks, peeked.id) + in_chunk * value_bytes,
            coded ? plan.value_scales.Chunk(plan.chunks, peeked.id) + in_chunk * 4 : nullptr};
  }
};

template <int kHeadDim>
struct FetchShared {
  std::byte stages[kStages][paged::StageLayout<kHeadDim>::kBytes];
  uint32_t ranges[kStages][kStage];  // fp16 scales and zeros of values in codes
  TokenSource sources[2][kStage];    // of the stage that is brought next and the one after it
};

// Bytes from the start of a stage to the key of its token.
template <int kHeadDim>
__device__ int32_t RowOffset(int32_t token) {
  using Layout = paged::StageLayout<kHeadDim>;
  return token / paged::kChunkTokens * Layout::kChunkBytes +
         token % paged::kChunkTokens * Layout::kRowBytes;
}

// The thread's token of a stage, one of the first kStage threads'.
__device__ inline int32_t OwnToken(const TokenRange& range, int32_t stage) {
  const auto place = static_cast<int32_t>(threadIdx.x);
  const int32_t token = range.begin + stage * kStage + place;
  return place < kStage && token < range.end ? token : -1;
}

// Asks where a stage's tokens are, for FindStage later: what is asked for has time to come.
__device__ inline StagePlace PeekStage(const HeadTokens& tokens,
                                       const TokenRange& range,
                                       int32_t stage) {
  const int32_t token = OwnToken(range, stage);
  return token < 0 ? StagePlace{} : tokens.Peek(token);
}

// Looks up a stage's tokens, for BeginStage after the next synchronisation.
template <int kHeadDim>
__device__ void FindStage(const HeadTokens& tokens,
                          const TokenRange& range,
                          int32_t stage,
                          const StagePlace& peeked,
                          FetchShared<kHeadDim>& shared) {
  if (threadIdx.x >= kStage) return;
  const int32_t token = OwnToken(range, stage);
  shared.sources[stage % 2][threadIdx.x] =
      token < 0 ? TokenSource{} : tokens.template Find<kHeadDim>(token, peeked);
}

// Starts the copies of `parts` 16-byte parts of every value of a stage, as far as the values have
// them. All threads.
template <int kHeadDim>
__device__ void CopyValues(int32_t parts,
                           int32_t code_parts,
                           int32_t stage,
                           FetchShared<kHeadDim>& shared) {
  std::byte* target = shared.stages[stage % kStages] + paged::StageLayout<kHeadDim>::kValues;
#pragma unroll 2
  for (int32_t i = threadIdx.x; i < kStage * parts; i += kAttendThreads) {
    const int32_t token = i / parts;
    const int32_t part = i % parts;
    const TokenSource& source = shared.sources[stage % 2][token];
    const bool exists = source.key != nullptr && (source.range == nullptr || part < code_parts);
    CopyAsync16(
        target + RowOffset<kHeadDim>(token) + 16 * part, source.value + 16 * part, exists ? 16 : 0);
  }
}

// Starts the copies of a stage whose tokens have been looked up; they are a group. `coded`: all its
// values are in codes. All threads.
template <int kHeadDim>
__device__ void BeginStage(int32_t value_bits,
                           bool coded,
                           int32_t stage,
                           FetchShared<kHeadDim>& shared) {
  constexpr int32_t kParts = kHeadDim / 8;
  constexpr int32_t kTokens = kAttendThreads / kParts;  // at once
  const int32_t part = static_cast<int32_t>(threadIdx.x) % kParts;
  const int32_t first = static_cast<int32_t>(threadIdx.x) / kParts;
  const TokenSource* sources = shared.sources[stage % 2];
  std::byte* target = shared.stages[stage % kStages];
#pragma unroll
  for (int32_t i = 0; i < kStage / kTokens; ++i) {
    const std::byte* key = sources[first + i * kTokens].key;
    CopyAsync16(target + RowOffset<kHeadDim>(first + i * kTokens) + 16 * part,
                key + 16 * part,
                key != nullptr ? 16 : 0);
  }
  const int32_t code_parts = kHeadDim * value_bits / 128;
  if (coded && value_bits == 4) {
    CopyValues(kHeadDim / 32, code_parts, stage, shared);
  } else {
    CopyValues(kParts, code_parts, stage, shared);
  }
  if (threadIdx.x < kStage && sources[threadIdx.x].range != nullptr) {
    CopyAsync4(&shared.ranges[stage % kStages][threadIdx.x], sources[threadIdx.x].range);
  }
  CommitCopies();
}

// Eight elements of a value from their codes, the `part`-th of `row`.
template <int kBits>
__device__ inline uint2 LoadCodeWords(const std::byte* row, int32_t part) {
  if constexpr (kBits == 8) return reinterpret_cast<const uint2*>(row)[part];
  if constexpr (kBits == 4) return {reinterpret_cast<const uint32_t*>(row)[part], 0};
  return {reinterpret_cast<const uint16_t*>(row)[part], 0};
}
template <int kBits>
__device__ inline uint4 Dequantize(uint2 words, float2 range) {
  constexpr uint32_t kMask = (1u << kBits) - 1u;
  float x[8];
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const uint32_t word = e * kBits < 32 ? words.x : words.y;
    x[e] = __fmaf_rn(range.x, static_cast<float>(word >> (e * kBits % 32) & kMask), range.y);
  }
  return make_uint4(
      PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]), PackBf16(x[6], x[7]));
}

// Makes bf16 of the codes of a stage that is there. Each warp those of its tile
// (paged_attention_tile.cuh): all lanes of a row have read its codes before one writes what takes
// their place, and no warp waits for another.
template <int kHeadDim, int kBits>
__device__ void DequantizeStage(const HeadTokens& tokens,
                                const TokenRange& range,
                                int32_t stage,
                                FetchShared<kHeadDim>& shared) {
  constexpr int32_t kParts = kHeadDim / 8;
  constexpr int32_t kRows = kWarpLanes / kParts;  // at once
  constexpr int32_t kOwn = paged::kTileTokens;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  std::byte* values = shared.stages[stage % kStages] + paged::StageLayout<kHeadDim>::kValues;
  uint2 words[kOwn / kRows];
#pragma unroll
  for (int32_t i = 0; i < kOwn / kRows; ++i) {
    const int32_t row = paged::TileToken(i * kRows + lane / kParts, warp);
    words[i] = LoadCodeWords<kBits>(values + RowOffset<kHeadDim>(row), lane % kParts);
  }
  __syncwarp();
#pragma unroll
  for (int32_t i = 0; i < kOwn / kRows; ++i) {
    const int32_t row = paged::TileToken(i * kRows + lane / kParts, warp);
    const int32_t token = range.begin + stage * kStage + row;
    if (token >= range.end || !tokens.Coded(token)) continue;
    const uint32_t pair = shared.ranges[stage % kStages][row];
    const float2 scale_zero = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    *reinterpret_cast<uint4*>(values + RowOffset<kHeadDim>(row) + lane % kParts * 16) =
        Dequantize<kBits>(words[i], scale_zero);
  }
  __syncwarp();
}

// The same for any width; nothing for a stage without codes.
template <int kHeadDim>
__device__ void DequantizeStage(const HeadTokens& tokens,
                                const TokenRange& range,
                                int32_t stage,
                                FetchShared<kHeadDim>& shared) {
  const int32_t last = min(range.begin + (stage + 1) * kStage, range.end) - 1;
  if (stage >= range.stages() || !tokens.Coded(last)) return;
  switch (tokens.plan.value_bits) {
    case 8:
      return DequantizeStage<kHeadDim, 8>(tokens, range, stage, shared);
    case 4:
      return DequantizeStage<kHeadDim, 4>(tokens, range, stage, shared);
    default:
      return DequantizeStage<kHeadDim, 2>(tokens, range, stage, shared);
  }
}

}  // namespace baton::kernels::cuda::shadowkv
