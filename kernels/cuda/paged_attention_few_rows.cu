// Rows and query heads of one KV head are the lines of a product, 64 to a block; keys are cut into
// up to eight splits, each a block of its own, so that a window of 64 rows of 32 heads is 256
// blocks. A block goes through its split in stages of 64 tokens, two in shared memory, with one
// pass of running maxima and sums (FlashAttention-2, arXiv 2307.08691, algorithm 1): four warps, 16
// lines each. A second kernel merges the splits of a line. Splits follow from the sequence's keys
// alone, so that a row's bits depend neither on the rows beside it nor on other sequences.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/allow_shared.h"
#include "kernels/cuda/paged_attention_few_rows.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/dense.h"

namespace baton::kernels::cuda {
namespace {

constexpr int32_t kLeastRows = 17;
constexpr int32_t kMostRows = 128;
constexpr int64_t kMostSequences = 65535;  // a grid's

constexpr int32_t kWarps = 4;
constexpr int32_t kThreads = kWarps * kWarpLanes;
constexpr int32_t kBlocksPerMultiprocessor = 2;
constexpr int32_t kWarpLines = 16;
constexpr int32_t kLines = kWarps * kWarpLines;
constexpr int32_t kStageTokens = 64;
constexpr int32_t kStages = 2;
constexpr int32_t kMostSplits = 8;
// Less would be too little beside the merge.
constexpr int32_t kLeastSplitStages = 4;

// A call as the kernels get it.
struct Call {
  PagedAttentionParams params;
  int32_t group = 0;          // query heads per KV head
  int32_t tile_rows = 0;      // of a block
  int32_t row_tiles = 0;      // of the sequence with most rows
  float score_scale = 0.0f;   // scale * log2(e): weights are powers of two
  float* out = nullptr;       // [slots][kLines][head_dim], weighted values
  float2* weights = nullptr;  // [slots][kLines]: maximum to base 2, sum of weights relative to it

  __host__ __device__ int64_t Slot(int64_t sequence, int64_t kv_head, int64_t tile) const {
    return ((sequence * params.pages.layout.kv_heads + kv_head) * row_tiles + tile) * kMostSplits;
  }
  int64_t slots() const { return Slot(params.num_sequences, 0, 0); }
};

// Tokens of a split of a sequence with so many keys.
__device__ int32_t SplitTokens(int32_t keys) {
  const int32_t stages = (keys + kStageTokens - 1) / kStageTokens;
  return max((stages + kMostSplits - 1) / kMostSplits, kLeastSplitStages) * kStageTokens;
}

__device__ int32_t KeysOf(const Call& call, const SequenceRows& sequence) {
  return call.params.positions[sequence.row_begin + sequence.row_count - 1] + 1;
}

// Keys and values of 64 tokens. The 16-byte parts of a row lie in the order of their number xor the
// row's, so that eight rows at the same part are read without conflicts.
template <int kHeadDim>
struct Stage {
  static constexpr int32_t kParts = kHeadDim / 8;

  alignas(128) uint4 keys[kStageTokens * kParts];
  alignas(128) uint4 values[kStageTokens * kParts];

  static __device__ int32_t Place(int32_t token, int32_t part) {
    return token * kParts + (part ^ (token % 8));
  }
};

// What a block works on.
struct Tile {
  SequenceRows sequence;
  int32_t kv_head;
  int32_t first_row;  // of the sequence's
  int32_t rows;
  int32_t begin;  // tokens of the split that any row sees
  int32_t end;
  int64_t slot;

  // Of a line of the block: the row of the call, -1 for none.
  __device__ int64_t Row(const Call& call, int32_t line) const {
    const int32_t row = line / call.group;
    return row < rows ? int64_t{sequence.row_begin} + first_row + row : -1;
  }
};

// False: the block has nothing to do, and nobody reads its slot.
__device__ bool FindTile(const Call& call, Tile& tile) {
  tile.sequence = call.params.sequences[blockIdx.z];
  tile.kv_head = static_cast<int32_t>(blockIdx.y) / call.row_tiles;
  const int32_t number = static_cast<int32_t>(blockIdx.y) % call.row_tiles;
  tile.first_row = number * call.tile_rows;
  tile.rows = min(call.tile_rows, tile.sequence.row_count - tile.first_row);
  if (tile.rows <= 0) return false;
  const int32_t keys = KeysOf(call, tile.sequence);
  const int32_t tokens = SplitTokens(keys);
  tile.begin = static_cast<int32_t>(blockIdx.x) * tokens;
  if (tile.begin >= keys) return false;
  const int32_t last =
      call.params.positions[tile.sequence.row_begin + tile.first_row + tile.rows - 1];
  tile.end = min(tile.begin + tokens, last + 1);
  tile.slot = call.Slot(blockIdx.z, tile.kv_head, number) + blockIdx.x;
  return true;
}

// A token's page in a sequence, and its place there.
struct PagePlace {
  int32_t page;
  int32_t slot;

  __device__ PagePlace(int32_t token, int32_t page_tokens)
      : page(token / page_tokens), slot(token % page_tokens) {}

  // That of the token so many pages and places on; `by.slot` is less than a page.
  __device__ void Advance(const PagePlace& by, int32_t page_tokens) {
    page += by.page;
    slot += by.slot;
    page += slot >= page_tokens ? 1 : 0;
    slot -= slot >= page_tokens ? page_tokens : 0;
  }
};

// Brings the stages of a tile in order. A stage's pages are looked up while the stage before it is
// multiplied, so that no copy waits for its address. A thread's tokens are kTokens apart: it
// divides for the first, the others follow by addition.
template <int kHeadDim>
class Loader {
 public:
  __device__ Loader(const Call& call, const Tile& tile)
      : tile_(tile),
        page_tokens_(call.params.pages.layout.page_tokens),
        page_bytes_(call.params.pages.layout.stride_bytes()),
        keys_(call.params.pages.base + call.params.pages.layout.key_offset(tile.kv_head, 0) +
              16 * Part()),
        to_values_(call.params.pages.layout.value_offset(0, 0) -
                   call.params.pages.layout.key_offset(0, 0)),
        of_stage_(kStageTokens, page_tokens_),
        of_step_(kTokens, page_tokens_),
        first_(tile.begin + Token(0), page_tokens_),
        next_(tile.begin) {
    FindPages();
  }

  // Starts the copies of the next stage, if there is one; zeros behind the tile's end. A group of
  // copies in any case.
  __device__ void Load(Stage<kHeadDim>& stage) {
    if (next_ < tile_.end) CopyRows(stage);
    CommitCopies();
    next_ += kStageTokens;
    first_.Advance(of_stage_, page_tokens_);
  }
  // Of the next stage.
  __device__ void FindPages() {
    PagePlace place = first_;
#pragma unroll
    for (int32_t i = 0; i < kRows; ++i) {
      ids_[i] = next_ + Token(i) < tile_.end ? __ldg(tile_.sequence.page_table + place.page) : 0;
      place.Advance(of_step_, page_tokens_);
    }
  }

 private:
  static constexpr int32_t kParts = Stage<kHeadDim>::kParts;
  static constexpr int32_t kTokens = kThreads / kParts;     // at a time
  static constexpr int32_t kRows = kStageTokens / kTokens;  // of a thread

  __device__ static int32_t Part() { return static_cast<int32_t>(threadIdx.x) % kParts; }
  __device__ static int32_t Token(int32_t i) {
    return static_cast<int32_t>(threadIdx.x) / kParts + i * kTokens;
  }

  __device__ void CopyRows(Stage<kHeadDim>& stage) const {
    PagePlace from = first_;
#pragma unroll
    for (int32_t i = 0; i < kRows; ++i) {
      const uint32_t bytes = next_ + Token(i) < tile_.end ? 16 : 0;
      const std::byte* source = keys_ + static_cast<size_t>(ids_[i]) * page_bytes_ +
                                static_cast<size_t>(from.slot) * (kHeadDim * sizeof(uint16_t));
      const int32_t place = Stage<kHeadDim>::Place(Token(i), Part());
      CopyAsync16(&stage.keys[place], source, bytes);
      CopyAsync16(&stage.values[place], source + to_values_, bytes);
      from.Advance(of_step_, page_tokens_);
    }
  }

  const Tile& tile_;
  const int32_t page_tokens_;
  const size_t page_bytes_;
  const std::byte* const keys_;  // the thread's part of the head's first key in page 0
  const size_t to_values_;
  const PagePlace of_stage_;  // how far a stage is
  const PagePlace of_step_;
  PagePlace first_;  // of the thread's first token of the next stage
  int32_t next_;
  int32_t ids_[kRows];
};

// One warp's lines: a lane has lines g and g + 8 of 16.
template <int kHeadDim>
class Lines {
 public:
  static constexpr int32_t kTokenTiles = kStageTokens / 8;

  __device__ Lines(const Call& call, const Tile& tile) : scale_(call.score_scale) {
    for (int i = 0; i < 2; ++i) {
      const int32_t line = Line(i);
      const int64_t row = tile.Row(call, line);
      last_key_[i] = row < 0 ? -1 : call.params.positions[row];
      LoadQuery(call, tile, line, row, i);
    }
  }

  __device__ static int32_t Line(int i) {
    return static_cast<int32_t>(threadIdx.x) / kWarpLanes * kWarpLines + LaneGroup() + 8 * i;
  }

  // Takes in the stage from token `position` on. All lanes.
  __device__ void Attend(const Stage<kHeadDim>& stage, int32_t position) {
    float scores[kTokenTiles][4] = {};
    Scores(stage, scores);
    Weigh(position, scores);
    AddValues(stage, scores);
  }

  __device__ void Write(const Call& call, const Tile& tile) {
    for (int i = 0; i < 2; ++i) {
      float sum = sum_[i];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      const int64_t line = tile.slot * kLines + Line(i);
      if (LaneInGroup() == 0) call.weights[line] = make_float2(max_[i], sum);
      auto* out = reinterpret_cast<float2*>(call.out + line * kHeadDim) + LaneInGroup();
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        out[4 * n] = make_float2(out_[n][2 * i], out_[n][2 * i + 1]);
      }
    }
  }

 private:
  __device__ void LoadQuery(const Call& call, const Tile& tile, int32_t line, int64_t row, int i) {
    const int64_t head = int64_t{tile.kv_head} * call.group + line % call.group;
    const auto* query = reinterpret_cast<const uint32_t*>(
                            static_cast<const uint16_t*>(call.params.q) +
                            (row < 0 ? 0 : row * call.params.q_stride + head * kHeadDim)) +
                        LaneInGroup();
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      query_[k][i] = row < 0 ? 0 : __ldg(query + 8 * k);
      query_[k][2 + i] = row < 0 ? 0 : __ldg(query + 8 * k + 4);
    }
  }

  // scores = Q K^T, eight tokens a tile.
  __device__ void Scores(const Stage<kHeadDim>& stage, float (&scores)[kTokenTiles][4]) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
    const int32_t token = lane % 8 + lane / 16 * 8;
    const int32_t part = lane / 8 % 2;
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; n += 2) {
        uint32_t keys[4];
        LoadMatrices(&stage.keys[Stage<kHeadDim>::Place(8 * n + token, 2 * k + part)], keys);
        MultiplyAddBf16(scores[n], query_[k], {keys[0], keys[1]});
        MultiplyAddBf16(scores[n + 1], query_[k], {keys[2], keys[3]});
      }
    }
  }

  // Scores become weights relative to the running maxima; sums and values follow these.
  __device__ void Weigh(int32_t position, float (&scores)[kTokenTiles][4]) {
    Hide(position, scores);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = -INFINITY;
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        largest = fmaxf(largest, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      const float max = fmaxf(max_[i], largest * scale_);
      const float base = max == -INFINITY ? 0.0f : max;
      const float rescale = Exp2(max_[i] - base);
      max_[i] = max;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        for (int c = 2 * i; c < 2 * i + 2; ++c) {
          scores[n][c] = Exp2(__fmaf_rn(scores[n][c], scale_, -base));
          sum += scores[n][c];
        }
      }
      sum_[i] = __fmaf_rn(sum_[i], rescale, sum);
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        out_[n][2 * i] *= rescale;
        out_[n][2 * i + 1] *= rescale;
      }
    }
  }

  // Keys behind a line's last have no weight.
  __device__ void Hide(int32_t position, float (&scores)[kTokenTiles][4]) const {
    const int32_t own = position + 2 * LaneInGroup();
    if (position + kStageTokens - 1 <= min(last_key_[0], last_key_[1])) return;
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      for (int c = 0; c < 4; ++c) {
        if (own + 8 * n + c % 2 > last_key_[c / 2]) scores[n][c] = -INFINITY;
      }
    }
  }

  // out += weights V.
  __device__ void AddValues(const Stage<kHeadDim>& stage, const float (&weights)[kTokenTiles][4]) {
    const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
    const int32_t token = lane % 16;
    const int32_t part = lane / 16;
#pragma unroll
    for (int k = 0; k < kStageTokens / 16; ++k) {
      const uint32_t operand[4] = {PackBf16(weights[2 * k][0], weights[2 * k][1]),
                                   PackBf16(weights[2 * k][2], weights[2 * k][3]),
                                   PackBf16(weights[2 * k + 1][0], weights[2 * k + 1][1]),
                                   PackBf16(weights[2 * k + 1][2], weights[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; n += 2) {
        uint32_t values[4];
        LoadTransposed(&stage.values[Stage<kHeadDim>::Place(16 * k + token, n + part)], values);
        MultiplyAddBf16(out_[n], operand, {values[0], values[1]});
        MultiplyAddBf16(out_[n + 1], operand, {values[2], values[3]});
      }
    }
  }

  const float scale_;
  int32_t last_key_[2];
  uint32_t query_[kHeadDim / 16][4];
  float max_[2] = {-INFINITY, -INFINITY};  // of scores to base 2
  float sum_[2] = {};                      // of weights; this lane's share
  float out_[kHeadDim / 8][4] = {};        // weighted values: dims 8 n + 2 t + {0, 1} of two lines
};

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    AttendSplits(const __grid_constant__ Call call) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  auto* stages = reinterpret_cast<Stage<kHeadDim>*>(shared_bytes);
  Tile tile;
  if (!FindTile(call, tile)) return;
  Lines<kHeadDim> lines(call, tile);
  Loader<kHeadDim> loader(call, tile);
  for (int32_t stage = 0; stage + 1 < kStages; ++stage) {
    loader.Load(stages[stage]);
    loader.FindPages();
  }
  int32_t place = 0;
  for (int32_t position = tile.begin; position < tile.end; position += kStageTokens) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // everyone is done with the stage before, which is loaded anew
    loader.Load(stages[place == 0 ? kStages - 1 : place - 1]);
    loader.FindPages();
    lines.Attend(stages[place], position);
    place = place + 1 == kStages ? 0 : place + 1;
  }
  lines.Write(call, tile);
}

// A warp merges the splits of a row and query head.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) MergeSplits(const __grid_constant__ Call call) {
  constexpr int32_t kLaneDims = kHeadDim / kWarpLanes;
  const PagedAttentionParams& params = call.params;
  const SequenceRows sequence = params.sequences[blockIdx.y];
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpLanes;
  const auto row = static_cast<int32_t>(index / params.heads);
  const auto head = static_cast<int32_t>(index % params.heads);
  if (row >= sequence.row_count) return;
  const int32_t keys = KeysOf(call, sequence);
  const int32_t tokens = SplitTokens(keys);
  const int32_t splits = (keys + tokens - 1) / tokens;
  const int64_t slot = call.Slot(blockIdx.y, head / call.group, row / call.tile_rows);
  const int32_t line = row % call.tile_rows * call.group + head % call.group;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  float max = -INFINITY;
  for (int32_t split = 0; split < splits; ++split) {
    max = fmaxf(max, call.weights[(slot + split) * kLines + line].x);
  }
  float sum = 0.0f;
  float out[kLaneDims] = {};
  for (int32_t split = 0; split < splits; ++split) {
    const int64_t at = (slot + split) * kLines + line;
    const float2 weights = call.weights[at];
    const float factor = Exp2(weights.x - max);
    sum = __fmaf_rn(weights.y, factor, sum);
    const float* part = call.out + at * kHeadDim + lane * kLaneDims;
    for (int i = 0; i < kLaneDims; ++i) out[i] = __fmaf_rn(part[i], factor, out[i]);
  }
  const int64_t own_row = int64_t{sequence.row_begin} + row;
  auto* target = reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(params.out) +
                                             own_row * params.out_stride + head * kHeadDim) +
                 lane * (kLaneDims / 2);
  const float inverse = 1.0f / sum;
  for (int i = 0; i < kLaneDims; i += 2) {
    target[i / 2] = PackBf16(out[i] * inverse, out[i + 1] * inverse);
  }
  if (params.lse != nullptr && lane == 0) {
    params.lse[own_row * params.heads + head] = (max + log2f(sum)) * kLn2;
  }
}

template <int kHeadDim>
absl::Status Launch(const DeviceQueue& queue, const Call& call) {
  constexpr size_t kBytes = kStages * sizeof(Stage<kHeadDim>);
  const PagedAttentionParams& params = call.params;
  const auto sequences = static_cast<uint32_t>(params.num_sequences);
  if (const cudaError_t error = AllowShared(AttendSplits<kHeadDim>, kBytes); error != cudaSuccess) {
    return ToStatus(error, "paged_attention");
  }
  const auto tiles = static_cast<uint32_t>(params.pages.layout.kv_heads * call.row_tiles);
  AttendSplits<kHeadDim>
      <<<dim3(kMostSplits, tiles, sequences), kThreads, kBytes, queue.stream()>>>(call);
  const int64_t lines = params.max_sequence_rows * params.heads;
  const auto blocks = static_cast<uint32_t>((lines + kWarps - 1) / kWarps);
  MergeSplits<kHeadDim><<<dim3(blocks, sequences), kThreads, 0, queue.stream()>>>(call);
  return ToStatus(cudaGetLastError(), "paged_attention");
}

}  // namespace

bool HasFewRows(const PagedAttentionParams& params) {
  return params.whole_keys && !params.merge && params.sliding_window == 0 &&
         params.max_sequence_rows >= kLeastRows && params.max_sequence_rows <= kMostRows &&
         // Of many decode rows beside those of a window, each would take as long as a tile.
         params.rows >= kLeastRows * params.num_sequences && params.num_sequences <= kMostSequences;
}

absl::Status FewRowsAttention(const DeviceQueue& queue, const PagedAttentionParams& params) {
  const DensePageLayout& layout = params.pages.layout;
  const auto group = static_cast<int32_t>(params.heads / layout.kv_heads);
  Call call = {.params = params,
               .group = group,
               .tile_rows = kLines / group,
               .score_scale = params.scale * kLog2E};
  call.row_tiles = (params.max_sequence_rows + call.tile_rows - 1) / call.tile_rows;
  const int64_t lines = call.slots() * kLines;
  const auto bytes = static_cast<size_t>(lines) *
                     (sizeof(float2) + static_cast<size_t>(layout.head_dim) * sizeof(float));
  if (bytes > queue.workspace().size()) {
    return absl::UnimplementedError("paged_attention: no room for the splits of few rows");
  }
  call.weights = queue.workspace().as<float2>();
  call.out = reinterpret_cast<float*>(call.weights + lines);
  return layout.head_dim == 64 ? Launch<64>(queue, call) : Launch<128>(queue, call);
}

}  // namespace baton::kernels::cuda
