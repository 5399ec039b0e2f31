// Attention probabilities of a prompt's observed queries: one pass over the keys where the rows'
// log-sum-exps are given (DiffKV section 4), else one more to find them.
//
// A block of four warps takes 128 keys of one KV head and up to 64 rows; a warp holds 32 keys in
// registers and goes through the rows (probability_tile.cuh). Without log-sum-exps, MeasureKernel
// writes each row's maximum and sum over the block's keys, a split, and MergeKernel folds a row's
// splits. Splits are counted from key_begin and have one size, and only those that a row sees are
// folded, so that a row's bits depend on no other row.
//
// The probabilities are written out, to be added up by accumulate_scores: the sum over rows has to
// be in order of rows over calls and, in an AcrossKV group, over layers. 64 rows of 8 KV heads over
// 8192 keys are 16 MiB, which the second-level cache holds, little beside the layer's own work: one
// kernel for both would save a few microseconds of milliseconds.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/check_pages.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/diffkv_checks.h"
#include "kernels/cuda/probability_tile.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

using probability::KeyRange;
using probability::kLaneRows;
using probability::kLaneTokens;
using probability::kTileRows;
using probability::kTileTokens;
using probability::TileKeys;
using probability::TileQueries;

constexpr int32_t kWarps = 4;
constexpr int32_t kThreads = kWarps * kWarpLanes;
constexpr int32_t kBlocksPerMultiprocessor = 4;
constexpr int32_t kSplitTokens = kWarps * kTileTokens;
constexpr int32_t kBlockRows = 64;  // at most
constexpr int64_t kMaxGroup = 16;
// Keys are counted in int32, with room for a split.
constexpr int64_t kMaxKeys = int64_t{1} << 30;

// Weights of some keys: their sum relative to 2^max. No key: -inf, 0.
struct alignas(8) Weights {
  float max;
  float sum;
};
__device__ constexpr Weights NoWeights() { return {.max = -INFINITY, .sum = 0.0f}; }

// A launch as the kernels get it.
struct Call {
  AttentionProbabilitiesParams params;
  int32_t group = 0;           // query heads per KV head
  int32_t splits = 0;          // of probability_stride keys
  int32_t block_rows = 0;      // up to kBlockRows, whole tiles
  float score_scale = 0.0f;    // scale * log2(e): weights are powers of two
  const float* lse = nullptr;  // [rows][heads]; times lse_scale to base 2
  float lse_scale = 0.0f;
  Weights* partials = nullptr;  // [rows][heads][splits]
};

// A warp's keys and its block's rows.
struct Work {
  int32_t kv_head;
  int32_t split;
  int32_t begin;  // of the warp's keys, from key_begin on
  int64_t row_begin;
  int64_t row_end;
  KeyRange seen;  // by any of the rows

  __device__ int32_t Key(int token) const { return begin + LaneGroup() + 8 * token; }
};

// Blocks of the same keys follow each other.
__device__ Work WorkOfWarp(const Call& call) {
  const auto row_blocks =
      static_cast<uint32_t>((call.params.rows + call.block_rows - 1) / call.block_rows);
  const auto split = static_cast<int32_t>(blockIdx.x / row_blocks);
  const auto warp = static_cast<int32_t>(threadIdx.x) / kWarpLanes;
  const int64_t row_begin = int64_t{blockIdx.x % row_blocks} * call.block_rows;
  const int64_t row_end = min(row_begin + call.block_rows, call.params.rows);
  return {.kv_head = static_cast<int32_t>(blockIdx.y),
          .split = split,
          .begin = split * kSplitTokens + warp * kTileTokens,
          .row_begin = row_begin,
          .row_end = row_end,
          .seen = probability::SeenByAny(call.params, row_begin, row_end)};
}

// What the lane's two of eight rows from `row` on see.
struct LaneRowKeys {
  KeyRange rows[kLaneRows];

  __device__ LaneRowKeys(const AttentionProbabilitiesParams& params, int64_t row) {
    for (int c = 0; c < kLaneRows; ++c) {
      rows[c] = probability::SeenBy(params, row + 2 * LaneInGroup() + c);
    }
  }
  // Whether any of the eight rows sees a key of the warp's. All lanes.
  __device__ bool MeetTile(int32_t begin) const {
    return __any_sync(kAllLanes,
                      rows[0].Meets(begin, kTileTokens) || rows[1].Meets(begin, kTileTokens));
  }
};

// The lane's scores of a query head of the KV head, for eight rows from `row` on.
template <int kHeadDim>
__device__ void HeadScores(const Call& call,
                           const Work& work,
                           int64_t row,
                           int32_t head_in_group,
                           const TileKeys<kHeadDim>& keys,
                           float (&scores)[kLaneTokens][kLaneRows]) {
  TileQueries<kHeadDim> queries;
  queries.Load(call.params, row, int64_t{work.kv_head} * call.group + head_in_group);
  probability::Scores(keys, queries, scores);
}

// The largest probability that a head of the group gives each key; of keys that a row does not see
// whatever comes out.
template <int kHeadDim>
__device__ void Peaks(const Call& call,
                      const Work& work,
                      int64_t row,
                      const TileKeys<kHeadDim>& keys,
                      float (&peaks)[kLaneTokens][kLaneRows]) {
  const int64_t own_row = row + 2 * LaneInGroup();
  const int64_t heads = call.params.heads;
  const float* lse = call.lse + own_row * heads + int64_t{work.kv_head} * call.group;
#pragma unroll 1
  for (int32_t head = 0; head < call.group; ++head) {
    float shift[kLaneRows];
    for (int c = 0; c < kLaneRows; ++c) {
      shift[c] = own_row + c < call.params.rows ? -call.lse_scale * lse[c * heads + head] : 0.0f;
    }
    float scores[kLaneTokens][kLaneRows];
    HeadScores(call, work, row, head, keys, scores);
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) {
      for (int c = 0; c < kLaneRows; ++c) {
        const float weight = Exp2(__fmaf_rn(scores[i][c], call.score_scale, shift[c]));
        peaks[i][c] = fmaxf(peaks[i][c], weight);
      }
    }
  }
}

// Writes the lane's keys of its rows. Eight lanes write 32 contiguous bytes, at any alignment.
__device__ void Store(const Call& call,
                      const Work& work,
                      int64_t row,
                      const LaneRowKeys& seen,
                      const float (&peaks)[kLaneTokens][kLaneRows]) {
  const AttentionProbabilitiesParams& params = call.params;
#pragma unroll
  for (int c = 0; c < kLaneRows; ++c) {
    const int64_t own_row = row + 2 * LaneInGroup() + c;
    if (own_row >= params.rows) continue;
    float* out = params.probabilities + (own_row * params.pages.layout.kv_heads + work.kv_head) *
                                            params.probability_stride;
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) {
      const int32_t key = work.Key(i);
      if (key >= params.probability_stride) continue;
      const bool has = seen.rows[c].Has(key);
      if (!params.combine) {
        out[key] = has ? peaks[i][c] : 0.0f;
      } else if (has) {
        out[key] = fmaxf(out[key], peaks[i][c]);
      }
    }
  }
}

// Probabilities of a block's rows and keys.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    RaiseKernel(const __grid_constant__ Call call) {
  const Work work = WorkOfWarp(call);
  TileKeys<kHeadDim> keys;
  keys.Load(call.params, work.kv_head, work.begin, work.seen);
  for (int64_t row = work.row_begin; row < work.row_end; row += kTileRows) {
    const LaneRowKeys seen(call.params, row);
    float peaks[kLaneTokens][kLaneRows] = {};
    if (seen.MeetTile(work.begin)) Peaks(call, work, row, keys, peaks);
    Store(call, work, row, seen, peaks);
  }
}

__device__ Weights Fold(const Weights& a, const Weights& b) {
  const float max = fmaxf(a.max, b.max);
  const float base = max == -INFINITY ? 0.0f : max;
  return {.max = max, .sum = __fmaf_rn(a.sum, Exp2(a.max - base), b.sum * Exp2(b.max - base))};
}

// Weights of the warp's keys for eight rows from `row` on and the group's heads, [rows][group].
template <int kHeadDim>
__device__ void MeasureRows(const Call& call,
                            const Work& work,
                            int64_t row,
                            const LaneRowKeys& seen,
                            const TileKeys<kHeadDim>& keys,
                            Weights* weights) {
#pragma unroll 1
  for (int32_t head = 0; head < call.group; ++head) {
    float scores[kLaneTokens][kLaneRows];
    HeadScores(call, work, row, head, keys, scores);
#pragma unroll
    for (int c = 0; c < kLaneRows; ++c) {
      float max = -INFINITY;
#pragma unroll
      for (int i = 0; i < kLaneTokens; ++i) {
        const bool has = seen.rows[c].Has(work.Key(i));
        scores[i][c] = has ? scores[i][c] * call.score_scale : -INFINITY;
        max = fmaxf(max, scores[i][c]);
      }
      max = MaxAcrossGroups(max);
      const float base = max == -INFINITY ? 0.0f : max;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kLaneTokens; ++i) sum += Exp2(scores[i][c] - base);
      sum = SumAcrossGroups(sum);
      const int32_t own_row = 2 * LaneInGroup() + c;
      if (LaneGroup() == 0 && row + own_row < work.row_end) {
        weights[own_row * call.group + head] = {.max = max, .sum = sum};
      }
    }
  }
}

// Writes the weights of one split of the keys for a block's rows and the heads of its KV head. A
// block whose rows see none of its keys writes nothing: nobody reads that.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    MeasureKernel(const __grid_constant__ Call call) {
  __shared__ Weights of_warps[kWarps][kBlockRows * kMaxGroup];
  const Work work = WorkOfWarp(call);
  if (!work.seen.Meets(work.split * kSplitTokens, kSplitTokens)) return;
  const auto columns = static_cast<int32_t>(work.row_end - work.row_begin) * call.group;
  Weights* own = of_warps[threadIdx.x / kWarpLanes];
  for (int32_t i = threadIdx.x % kWarpLanes; i < columns; i += kWarpLanes) own[i] = NoWeights();
  __syncwarp();
  TileKeys<kHeadDim> keys;
  keys.Load(call.params, work.kv_head, work.begin, work.seen);
  for (int64_t row = work.row_begin; row < work.row_end; row += kTileRows) {
    const LaneRowKeys seen(call.params, row);
    if (!seen.MeetTile(work.begin)) continue;
    MeasureRows(call, work, row, seen, keys, own + (row - work.row_begin) * call.group);
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < columns; i += kThreads) {
    Weights weights = of_warps[0][i];
    for (int32_t warp = 1; warp < kWarps; ++warp) weights = Fold(weights, of_warps[warp][i]);
    const int64_t row = work.row_begin + i / call.group;
    const int64_t head = int64_t{work.kv_head} * call.group + i % call.group;
    call.partials[(row * call.params.heads + head) * call.splits + work.split] = weights;
  }
}

// A warp folds the splits that a row sees for one head; `lse` gets the log-sum-exp to base 2.
__global__ void __launch_bounds__(kThreads)
    MergeKernel(const __grid_constant__ Call call, float* lse) {
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpLanes;
  if (index >= call.params.rows * call.params.heads) return;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  const KeyRange seen = probability::SeenBy(call.params, index / call.params.heads);
  const Weights* partials = call.partials + index * call.splits;
  Weights weights = NoWeights();
  for (int32_t split = seen.first / kSplitTokens + lane; split <= seen.last / kSplitTokens;
       split += kWarpLanes) {
    weights = Fold(weights, partials[split]);
  }
  for (int distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    const Weights other = {.max = __shfl_down_sync(kAllLanes, weights.max, distance),
                           .sum = __shfl_down_sync(kAllLanes, weights.sum, distance)};
    weights = Fold(weights, other);
  }
  if (lane == 0) lse[index] = weights.max + log2f(weights.sum);
}

// The op's rules as far as the host sees; `params` has rows.
absl::Status Check(const AttentionProbabilitiesParams& params) {
  ParamChecker check("attention_probabilities");
  CheckPages(params.pages, check);
  if (!check.ok()) return check.status();
  const DensePageLayout& layout = params.pages.layout;
  check.Positive("heads", params.heads)
      .Require(params.heads % layout.kv_heads == 0,
               "heads",
               params.heads,
               "must be a multiple of pages.layout.kv_heads")
      .Require(layout.kv_heads <= kMaxGridRows,
               "pages.layout.kv_heads",
               layout.kv_heads,
               "must be at most 65535")
      .NotNegative("sliding_window", params.sliding_window)
      .NotNegative("key_begin", params.key_begin)
      .NotNull("q", params.q)
      .AtLeast("q_stride", params.q_stride, params.heads * layout.head_dim)
      .Require(FitsVectors({params.q}, {params.q_stride}),
               "q_stride",
               params.q_stride,
               "rows of q must be aligned to 16 bytes")
      .NotNull("positions", params.positions)
      .NotNull("page_table", params.page_table)
      .NotNull("probabilities", params.probabilities)
      .Positive("probability_stride", params.probability_stride)
      .Require(params.probability_stride <= kMaxKeys,
               "probability_stride",
               params.probability_stride,
               "must be at most 2^30");
  return check.ok() ? CheckMatrixUnits(
                          "attention_probabilities", params.pages.layout, params.heads, kMaxGroup)
                    : check.status();
}

dim3 Grid(const Call& call) {
  const int64_t row_blocks = (call.params.rows + call.block_rows - 1) / call.block_rows;
  return dim3(static_cast<uint32_t>(row_blocks * call.splits),
              static_cast<uint32_t>(call.params.pages.layout.kv_heads));
}

// Rows of a block: all that it can have, or of a short prompt's an even share that leaves every
// multiprocessor its blocks. A block goes through its rows one after the other.
int32_t RowsOfBlock(const DeviceQueue& queue, const AttentionProbabilitiesParams& params) {
  const int64_t splits = (params.probability_stride + kSplitTokens - 1) / kSplitTokens;
  const int64_t blocks = int64_t{kBlocksPerMultiprocessor} * queue.multiprocessors();
  const int64_t rows = std::min<int64_t>(params.rows, kBlockRows);
  const int64_t shares = std::clamp<int64_t>(
      blocks / (splits * params.pages.layout.kv_heads), 1, (rows + kTileRows - 1) / kTileRows);
  const int64_t tiles = (rows + shares * kTileRows - 1) / (shares * kTileRows);
  return static_cast<int32_t>(tiles * kTileRows);
}

absl::Status Raise(const Call& call, cudaStream_t stream) {
  if (call.params.pages.layout.head_dim == 64) {
    RaiseKernel<64><<<Grid(call), kThreads, 0, stream>>>(call);
  } else {
    RaiseKernel<128><<<Grid(call), kThreads, 0, stream>>>(call);
  }
  return ToStatus(cudaGetLastError(), "attention_probabilities");
}

// Finds the log-sum-exps of all rows.
absl::Status Measure(const Call& call, float* lse, cudaStream_t stream) {
  if (call.params.pages.layout.head_dim == 64) {
    MeasureKernel<64><<<Grid(call), kThreads, 0, stream>>>(call);
  } else {
    MeasureKernel<128><<<Grid(call), kThreads, 0, stream>>>(call);
  }
  if (absl::Status status = ToStatus(cudaGetLastError(), "attention_probabilities maxima");
      !status.ok()) {
    return status;
  }
  const int64_t blocks = (call.params.rows * call.params.heads + kWarps - 1) / kWarps;
  MergeKernel<<<static_cast<uint32_t>(blocks), kThreads, 0, stream>>>(call, lse);
  return ToStatus(cudaGetLastError(), "attention_probabilities merge");
}

AttentionProbabilitiesParams RowsOf(const AttentionProbabilitiesParams& params,
                                    int64_t begin,
                                    int64_t count) {
  AttentionProbabilitiesParams part = params;
  part.q = static_cast<const uint16_t*>(params.q) + begin * params.q_stride;
  part.positions += begin;
  part.rows = count;
  part.probabilities += begin * params.pages.layout.kv_heads * params.probability_stride;
  return part;
}

// Without log-sum-exps: as many rows at a time as the workspace has room for.
absl::Status MeasureAndRaise(const DeviceQueue& queue, const Call& call) {
  const AttentionProbabilitiesParams& params = call.params;
  const int64_t partials_of_row = params.heads * call.splits;
  const int64_t row_bytes = partials_of_row * static_cast<int64_t>(sizeof(Weights)) +
                            params.heads * static_cast<int64_t>(sizeof(float));
  const auto room = static_cast<int64_t>(queue.workspace().size()) / row_bytes;
  if (room == 0) {
    return absl::ResourceExhaustedError(absl::StrCat("attention_probabilities: a workspace of ",
                                                     queue.workspace().size(),
                                                     " bytes does not hold the ",
                                                     row_bytes,
                                                     " of one row"));
  }
  const int64_t at_once = room > kTileRows ? room - room % kTileRows : room;
  for (int64_t begin = 0; begin < params.rows; begin += at_once) {
    Call part = call;
    part.params = RowsOf(params, begin, std::min(at_once, params.rows - begin));
    part.partials = queue.workspace().as<Weights>();
    auto* lse = reinterpret_cast<float*>(part.partials + part.params.rows * partials_of_row);
    part.lse = lse;
    part.lse_scale = 1.0f;
    absl::Status status = Measure(part, lse, queue.stream());
    if (status.ok()) status = Raise(part, queue.stream());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AttentionProbabilities(const ExecContext& context,
                                    const AttentionProbabilitiesParams& params) {
  ParamChecker check("attention_probabilities");
  check.NotNegative("rows", params.rows);
  if (!check.ok() || params.rows == 0) {
    return check.status();
  }
  if (absl::Status status = Check(params); !status.ok()) {
    return status;
  }
  const int64_t splits = (params.probability_stride + kSplitTokens - 1) / kSplitTokens;
  const Call call = {.params = params,
                     .group = static_cast<int32_t>(params.heads / params.pages.layout.kv_heads),
                     .splits = static_cast<int32_t>(splits),
                     .block_rows = RowsOfBlock(*context.queue, params),
                     .score_scale = params.scale * kLog2E,
                     .lse = params.lse,
                     .lse_scale = kLog2E};
  return params.lse != nullptr ? Raise(call, context.queue->stream())
                               : MeasureAndRaise(*context.queue, call);
}

}  // namespace baton::kernels::cuda
