// How tokens of a head come to shared memory, in stages of 64 as paged_attention_tile.cuh has them:
// keys and values from wherever the plan says. Values in codes are brought as they are, to the
// front of their rows: reading codes each step takes less of the memory than keeping the values of
// a step in bf16 would.
//
// A stage is of exact tokens or of selected ones. Static tokens lie behind each other. Chunks of
// the shape that is served are brought whole: sixteen lanes have one, and find it by its id and
// slot alone. Other tokens are looked up one by one, which takes several times the instructions.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/paged_attention_tile.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/ptx_copy_policy.cuh"
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
  __device__ int32_t Token(int32_t stage) const { return begin + stage * kStage; }
};

// Chunks that are brought whole: tokens of one, and the lanes that bring it.
inline constexpr int32_t kWholeShift = 3;
inline constexpr int32_t kWholeTokens = 1 << kWholeShift;
inline constexpr int32_t kWholeLanes = 16;
static_assert(kAttendThreads / kWholeLanes * kWholeTokens == kStage);

// Where the thread's token of a stage is, if it is of a selected chunk, or the thread's chunk.
struct StagePlace {
  int32_t id = 0;
  int32_t slot = -1;  // of a chunk that there is not
};

// How a stage is brought.
enum class StageKind : uint8_t { kTokens, kStatic, kChunks };

// What a head's tokens are looked up in.
struct HeadTokens {
  const HeadPlan& plan;
  const int32_t* ids;    // of the selected chunks
  const int32_t* slots;  // of their keys
  uint64_t policy;       // of what is brought: it is read once
  int32_t selected_begin;
  bool coded;  // values of selected tokens
  bool whole;  // selected chunks are brought whole

  __device__ HeadTokens(const HeadPlan& head, const int32_t* chunk_ids, const int32_t* chunk_slots)
      : plan(head),
        ids(chunk_ids),
        slots(chunk_slots),
        policy(ReadOncePolicy()),
        selected_begin(head.selected_begin),
        coded(head.value_bits < 16),
        whole(head.value_bits == 4 && head.chunks.token_shift == kWholeShift) {}

  // Whether the stage of this token is of selected ones.
  __device__ bool Selected(int32_t token) const { return token >= selected_begin; }

  __device__ StageKind Kind(const TokenRange& range, int32_t stage) const {
    const int32_t begin = range.Token(stage);
    if (Selected(begin)) return whole ? StageKind::kChunks : StageKind::kTokens;
    const bool all_static = begin + kStage <= min(plan.static_end, range.end);
    return all_static ? StageKind::kStatic : StageKind::kTokens;
  }

  // Which chunk a selected token is of, and the slot of its keys.
  __device__ StagePlace Peek(int32_t token) const {
    if (!Selected(token)) return {};
    const int32_t place = (token - selected_begin) >> plan.chunks.token_shift;
    return {.id = ids[place], .slot = slots[place]};
  }

  // Values of a selected chunk, as they are stored.
  __device__ const std::byte* ChunkValues(const StagePlace& place) const {
    if (plan.slot_values != nullptr) {
      return plan.slot_values + int64_t{place.slot} * plan.values.chunk_bytes;
    }
    return plan.values.Chunk(plan.chunks, place.id);
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
    if (!Selected(token)) return {};
    const int32_t in_chunk = (token - selected_begin) & (plan.chunks.tokens() - 1);
    const int64_t row = (int64_t{peeked.slot} << plan.chunks.token_shift) + in_chunk;
    const int32_t value_bytes = kHeadDim * plan.value_bits / 8;
    return {plan.keys + row * kRowBytes,
            ChunkValues(peeked) + in_chunk * value_bytes,
            coded ? plan.value_scales.Chunk(plan.chunks, peeked.id) + in_chunk * 4 : nullptr};
  }
};

template <int kHeadDim>
struct FetchShared {
  std::byte stages[kStages][paged::StageLayout<kHeadDim>::kBytes];
  alignas(16) uint32_t ranges[kStages][kStage];  // fp16 scales and zeros of values in codes
  TokenSource sources[2][kStage];  // of the stage that is brought next and the one after it
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
  const int32_t token = range.Token(stage) + place;
  return place < kStage && token < range.end ? token : -1;
}

// The thread's chunk of a stage of whole ones: its first token in the stage.
__device__ inline int32_t OwnChunk() {
  return static_cast<int32_t>(threadIdx.x) / kWholeLanes * kWholeTokens;
}

// Asks where a stage's tokens are, for FindStage and BeginStage later: what is asked for has time
// to come.
__device__ inline StagePlace PeekStage(const HeadTokens& tokens,
                                       const TokenRange& range,
                                       int32_t stage) {
  const int32_t begin = range.Token(stage);
  const bool chunks = tokens.Kind(range, stage) == StageKind::kChunks;
  const int32_t token = chunks ? begin + OwnChunk() : OwnToken(range, stage);
  return token < 0 || token >= range.end ? StagePlace{} : tokens.Peek(token);
}

// Looks up a stage's tokens, if they are brought one by one, for BeginStage after the next
// synchronisation.
template <int kHeadDim>
__device__ void FindStage(const HeadTokens& tokens,
                          const TokenRange& range,
                          int32_t stage,
                          const StagePlace& peeked,
                          FetchShared<kHeadDim>& shared) {
  if (threadIdx.x >= kStage || tokens.Kind(range, stage) != StageKind::kTokens) return;
  const int32_t token = OwnToken(range, stage);
  shared.sources[stage % 2][threadIdx.x] =
      token < 0 ? TokenSource{} : tokens.template Find<kHeadDim>(token, peeked);
}

// Starts the copies of the thread's share of its chunk of a stage. What is past the last chunk is
// left as it is. All threads.
template <int kHeadDim>
__device__ void CopyChunk(const HeadTokens& tokens,
                          const StagePlace& chunk,
                          int32_t stage,
                          FetchShared<kHeadDim>& shared) {
  using Layout = paged::StageLayout<kHeadDim>;
  constexpr int32_t kAtOnce = 16 * kWholeLanes;  // bytes
  constexpr int32_t kKeyBytes = kWholeTokens * Layout::kRowBytes;
  constexpr int32_t kCodeParts = kHeadDim / 32;              // of a token
  constexpr int32_t kCodeTokens = kWholeLanes / kCodeParts;  // at once
  if (chunk.slot < 0) return;
  const HeadPlan& plan = tokens.plan;
  const uint64_t policy = tokens.policy;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWholeLanes;
  std::byte* target = shared.stages[stage % kStages] + RowOffset<kHeadDim>(OwnChunk());
  const std::byte* keys = plan.keys + int64_t{chunk.slot} * kKeyBytes + 16 * lane;
  const std::byte* codes = tokens.ChunkValues(chunk) + 16 * lane;
  const std::byte* ranges = plan.value_scales.Chunk(plan.chunks, chunk.id) + 16 * lane;
#pragma unroll
  for (int32_t i = 0; i < kKeyBytes / kAtOnce; ++i) {
    CopyAsync16ByPolicy(target + 16 * lane + i * kAtOnce, keys + i * kAtOnce, policy);
  }
  std::byte* values = target + Layout::kValues + lane / kCodeParts * Layout::kRowBytes;
#pragma unroll
  for (int32_t i = 0; i < kWholeTokens / kCodeTokens; ++i) {
    CopyAsync16ByPolicy(values + lane % kCodeParts * 16 + i * kCodeTokens * Layout::kRowBytes,
                        codes + i * kAtOnce,
                        policy);
  }
  if (lane < kWholeTokens / 4) {
    CopyAsync16(&shared.ranges[stage % kStages][OwnChunk() + 4 * lane], ranges);
  }
}

// Starts the copies of a stage of static tokens, of which `first` is the first. All threads.
template <int kHeadDim>
__device__ void CopyStatic(const HeadTokens& tokens,
                           int32_t first,
                           int32_t stage,
                           FetchShared<kHeadDim>& shared) {
  using Layout = paged::StageLayout<kHeadDim>;
  constexpr int32_t kParts = kHeadDim / 8;
  constexpr int32_t kRows = kAttendThreads / kParts;  // at once
  const int32_t row = static_cast<int32_t>(threadIdx.x) / kParts;
  const int32_t part = static_cast<int32_t>(threadIdx.x) % kParts * 16;
  const int64_t offset = int64_t{first + row} * Layout::kRowBytes + part;
  const std::byte* keys = tokens.plan.static_keys + offset;
  const std::byte* values = tokens.plan.static_values + offset;
  std::byte* target = shared.stages[stage % kStages] + RowOffset<kHeadDim>(row) + part;
#pragma unroll
  for (int32_t i = 0; i < kStage; i += kRows) {
    std::byte* place = target + RowOffset<kHeadDim>(i);
    CopyAsync16ByPolicy(place, keys + i * Layout::kRowBytes, tokens.policy);
    CopyAsync16ByPolicy(place + Layout::kValues, values + i * Layout::kRowBytes, tokens.policy);
  }
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

// Starts the copies of a stage whose tokens have been looked up. `coded`: its values are in codes.
// All threads.
template <int kHeadDim>
__device__ void CopyTokens(int32_t value_bits,
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
}

// Starts the copies of a stage, which are a group; `peeked` is what PeekStage gave, and FindStage
// has been called before the last synchronisation. All threads.
template <int kHeadDim>
__device__ void BeginStage(const HeadTokens& tokens,
                           const TokenRange& range,
                           int32_t stage,
                           const StagePlace& peeked,
                           FetchShared<kHeadDim>& shared) {
  const int32_t begin = range.Token(stage);
  switch (tokens.Kind(range, stage)) {
    case StageKind::kChunks:
      CopyChunk(tokens, peeked, stage, shared);
      break;
    case StageKind::kStatic:
      CopyStatic(tokens, begin, stage, shared);
      break;
    case StageKind::kTokens:
      CopyTokens(tokens.plan.value_bits, tokens.coded && tokens.Selected(begin), stage, shared);
  }
  CommitCopies();
}

// Eight elements of a value from their codes, the `part`-th of `row`.
template <int kBits>
__device__ inline uint2 LoadCodeWords(const std::byte* row, int32_t part) {
  if constexpr (kBits == 8) return reinterpret_cast<const uint2*>(row)[part];
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

// Makes bf16 of the codes of a stage that is there, of 2 or 8 bits. Each warp those of its tile
// (paged_attention_tile.cuh): all lanes of a row have read its codes before one writes what takes
// their place, and no warp waits for another.
template <int kHeadDim, int kBits>
__device__ void DequantizeStage(const TokenRange& range,
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
    if (range.Token(stage) + row >= range.end) continue;
    const uint32_t pair = shared.ranges[stage % kStages][row];
    const float2 scale_zero = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    *reinterpret_cast<uint4*>(values + RowOffset<kHeadDim>(row) + lane % kParts * 16) =
        Dequantize<kBits>(words[i], scale_zero);
  }
  __syncwarp();
}

// The same for either width.
template <int kHeadDim>
__device__ void DequantizeStage(int32_t value_bits,
                                const TokenRange& range,
                                int32_t stage,
                                FetchShared<kHeadDim>& shared) {
  if (value_bits == 8) {
    DequantizeStage<kHeadDim, 8>(range, stage, shared);
  } else {
    DequantizeStage<kHeadDim, 2>(range, stage, shared);
  }
}

}  // namespace baton::kernels::cuda::shadowkv
