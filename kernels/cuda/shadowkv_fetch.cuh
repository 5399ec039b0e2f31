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
inline constexpr int32_t kAttendBlocks = 2;  // of a multiprocessor
inline constexpr int32_t kStages = 3;
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

// What a head's tokens are looked up in.
struct HeadTokens {
  const HeadPlan& plan;
  const int32_t* ids;    // of the selected chunks
  const int32_t* slots;  // of their keys

  // Whether the token's value is in codes.
  __device__ bool Coded(int32_t token) const {
    return plan.value_bits < 16 && token >= plan.exact_end;
  }

  template <int kHeadDim>
  __device__ TokenSource Find(int32_t token) const {
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
    const int32_t index = token - plan.exact_end;
    const int32_t place = index >> plan.chunks.token_shift;
    const int32_t in_chunk = index & (plan.chunks.tokens() - 1);
    const int64_t row = (int64_t{slots[place]} << plan.chunks.token_shift) + in_chunk;
    const int32_t id = ids[place];
    const bool coded = plan.value_bits < 16;
    const int32_t value_bytes = kHeadDim * plan.value_bits / 8;
    return {plan.keys + row * kRowBytes,
            plan.values.Chunk(plan.chunks, id) + in_chunk * value_bytes,
            coded ? plan.value_scales.Chunk(plan.chunks, id) + in_chunk * 4 : nullptr};
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

// Looks up a stage's tokens. The threads from `first_thread` on, one each.
template <int kHeadDim>
__device__ void FindStage(const HeadTokens& tokens,
                          const TokenRange& range,
                          int32_t stage,
                          int32_t first_thread,
                          FetchShared<kHeadDim>& shared) {
  const int32_t place = static_cast<int32_t>(threadIdx.x) - first_thread;
  if (place < 0 || place >= kStage) return;
  const int32_t token = range.begin + stage * kStage + place;
  shared.sources[stage % 2][place] =
      token < range.end ? tokens.template Find<kHeadDim>(token) : TokenSource{};
}

// Starts the copies of a stage whose tokens have been looked up; they are a group. All threads.
template <int kHeadDim>
__device__ void BeginStage(int32_t value_bits, int32_t stage, FetchShared<kHeadDim>& shared) {
  constexpr int32_t kParts = kHeadDim / 8;
  const int32_t code_bytes = kHeadDim * value_bits / 8;
  std::byte* target = shared.stages[stage % kStages];
#pragma unroll 4
  for (int32_t i = threadIdx.x; i < kStage * kParts; i += kAttendThreads) {
    const int32_t token = i / kParts;
    const int32_t offset = i % kParts * 16;
    const TokenSource& source = shared.sources[stage % 2][token];
    if (source.key == nullptr) continue;
    std::byte* row = target + RowOffset<kHeadDim>(token) + offset;
    CopyAsync16(row, source.key + offset);
    if (source.range == nullptr || offset < code_bytes) {
      CopyAsync16(row + paged::StageLayout<kHeadDim>::kValues, source.value + offset);
    }
    if (source.range != nullptr && offset == 0) {
      CopyAsync4(&shared.ranges[stage % kStages][token], source.range);
    }
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
    x[e] = range.x * static_cast<float>(word >> (e * kBits % 32) & kMask) + range.y;
  }
  return make_uint4(
      PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]), PackBf16(x[6], x[7]));
}

// Makes bf16 of the codes of a stage that is there. Each warp its rows: all lanes of a row have
// read its codes before one writes what takes their place.
template <int kHeadDim, int kBits>
__device__ void DequantizeStage(const HeadTokens& tokens,
                                const TokenRange& range,
                                int32_t stage,
                                FetchShared<kHeadDim>& shared) {
  constexpr int32_t kParts = kHeadDim / 8;
  constexpr int32_t kRows = kWarpLanes / kParts;  // at once
  constexpr int32_t kOwn = kStage / (kAttendThreads / kWarpLanes);
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  std::byte* values = shared.stages[stage % kStages] + paged::StageLayout<kHeadDim>::kValues;
  uint2 words[kOwn / kRows];
#pragma unroll
  for (int32_t i = 0; i < kOwn / kRows; ++i) {
    const int32_t row = warp * kOwn + i * kRows + lane / kParts;
    words[i] = LoadCodeWords<kBits>(values + RowOffset<kHeadDim>(row), lane % kParts);
  }
  __syncwarp();
#pragma unroll
  for (int32_t i = 0; i < kOwn / kRows; ++i) {
    const int32_t row = warp * kOwn + i * kRows + lane / kParts;
    const int32_t token = range.begin + stage * kStage + row;
    if (token >= range.end || !tokens.Coded(token)) continue;
    const uint32_t pair = shared.ranges[stage % kStages][row];
    const float2 scale_zero = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    *reinterpret_cast<uint4*>(values + RowOffset<kHeadDim>(row) + lane % kParts * 16) =
        Dequantize<kBits>(words[i], scale_zero);
  }
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
