// Choice of the chunks of a decode step.
//
// Scoring reads the landmarks (1 MiB of a KV head at 32K tokens in chunks of 8: at batch 32 and 8
// KV heads 256 MiB, about 60 us of an H200's memory, against which the products are little), so it
// spreads tiles of 32 chunks over all warps of the device and leaves logits, G x 4 bytes a chunk,
// and what each tile adds to the normalising sums. Then one block for each KV head and sequence has
// all of them: it adds up the sums, makes the scores and selects. Sequences with value clusters
// score their tokens once more, now that it is known which of them are taken.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/allow_shared.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/paged_attention_tile.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/early_launch.h"
#include "kernels/cuda/shadowkv_checks.h"
#include "kernels/cuda/shadowkv_cluster_sums.cuh"
#include "kernels/cuda/shadowkv_decode_workspace.cuh"
#include "kernels/cuda/shadowkv_device.cuh"
#include "kernels/cuda/shadowkv_score.cuh"
#include "kernels/cuda/shadowkv_score_tile.cuh"
#include "kernels/cuda/topk.cuh"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda {
namespace shadowkv {
namespace {

// Chunks of a block that adds to the sums of clusters.
constexpr int32_t kClusterTile = 256;
static_assert(kClusterTile * 8 <= kMaxClusterTokens);

// The sequences of one launch, and where their scratch is.
struct SelectCall {
  ShadowKvSelectParams params;
  SelectScratch scratch;
  int32_t group;
  int32_t tiles;  // of a warp of ScoreKernel
};

template <int kHeadDim>
__device__ const uint16_t* QueriesOf(const SelectCall& call, const ScoreTask& task) {
  return static_cast<const uint16_t*>(call.params.q) + task.row * call.params.q_stride +
         int64_t{blockIdx.y} * call.group * kHeadDim;
}
// The first query head of the block's KV head and sequence, counted over all sequences.
__device__ int64_t FirstLine(const SelectCall& call) {
  return blockIdx.z * call.params.heads + int64_t{blockIdx.y} * call.group;
}

__device__ ScoreLines LinesOfBlock(const SelectCall& call) {
  const SelectScratch& scratch = call.scratch;
  return {.logits = scratch.logits + FirstLine(call) * scratch.chunk_stride,
          .chunk_stride = scratch.chunk_stride,
          .partials = scratch.partials + FirstLine(call) * scratch.tiles,
          .partial_stride = scratch.tiles,
          .group = call.group,
          .scale = call.params.scale};
}

// Logits and partial sums of tiles of chunks: the x-th run of kScoreWarps * tiles, KV head y,
// sequence z.
template <int kHeadDim, int kColumnTiles>
__global__ void __launch_bounds__(kScoreThreads, kScoreBlocks<kColumnTiles>)
    ScoreKernel(const __grid_constant__ SelectCall call) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<ScoreShared<kHeadDim>*>(memory);
  LaunchDependents();
  if (threadIdx.x == 0) {
    shared.task =
        MakeScoreTask(call.params.sequences[blockIdx.z], blockIdx.y, call.params.bounds.max_chunks);
  }
  if (threadIdx.x < kScoreWarps * kMostTiles) shared.hidden[threadIdx.x] = 0;
  WaitForPredecessors();
  __syncthreads();
  const ScoreTask& task = shared.task;
  const int32_t tiles = (task.chunks.count + kSelectTile - 1) / kSelectTile;
  const int32_t of_block = call.tiles * kScoreWarps;
  const int32_t block_first = static_cast<int32_t>(blockIdx.x) * of_block;
  if (block_first >= tiles) return;
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  const int32_t first = block_first + warp * call.tiles;
  const int32_t end = min(first + call.tiles, tiles);
  if (first < end && !task.coded_keys()) BeginLandmarks(task, first, end, shared.rings[warp]);
  HideStatic(task, block_first * kSelectTile, of_block, shared.hidden);
  __syncthreads();
  if (first >= end) return;
  const uint32_t* hidden = shared.hidden + warp * call.tiles;
  const uint16_t* q = QueriesOf<kHeadDim>(call, task);
  const ScoreLines lines = LinesOfBlock(call);
  if (task.coded_keys()) {
    CodedQueries<kHeadDim, kColumnTiles> queries;
    queries.Load(q, call.group);
    ScoreTokens(task, first, end, hidden, queries, lines);
  } else if (task.coded_landmarks) {
    HalfQueries<kHeadDim, kColumnTiles> queries;
    queries.Load(q, call.group);
    ScoreCodedTiles(task, first, end, hidden, queries, lines, shared.rings[warp].coded);
  } else {
    paged::Queries<kHeadDim, kColumnTiles> queries;
    queries.Load(q, call.group);
    ScoreLandmarks(task, first, end, hidden, queries, lines, shared.rings[warp].landmarks);
  }
}

// What is to be chosen of a KV head.
struct ChooseTask {
  int32_t count;  // chunks
  int32_t selected;
  int32_t clusters;
};

__device__ ChooseTask MakeChooseTask(const ShadowKvSequence& sequence, int64_t max_chunks) {
  const SequencePlaces places(sequence);
  const CodedChunks chunks = places.Chunks(INT32_MAX);
  const auto count = static_cast<int32_t>(min(int64_t{chunks.count}, max_chunks));
  const int64_t selectable = chunks.count - places.layout().static_chunks;
  const int64_t selected = min(places.config().budget_chunks(), selectable);
  return {.count = count,
          .selected = static_cast<int32_t>(min(selected, int64_t{count})),
          .clusters = places.config().value_clusters};
}

template <int kThreads>
struct ChooseShared {
  ChooseTask task;
  TopKShared<kThreads> top_k;
  float totals[kMaxGroup];      // log-sum-exp of every line
  uint32_t largest[kMaxGroup];  // ordered keys of the largest logits that are not taken
  uint32_t keys[kSharedKeys];
};

// The log-sum-exp of a line from those of its tiles. One warp.
__device__ float AddPartials(const float2* partials, int32_t tiles) {
  float max = -INFINITY;
  float sum = 0.0f;
#pragma unroll 4
  for (int32_t i = threadIdx.x % kWarpLanes; i < tiles; i += kWarpLanes) {
    const float2 tile = partials[i];
    const float largest = fmaxf(max, tile.x);
    sum = __fmaf_rn(sum, Weight(max, largest), tile.y * Weight(tile.x, largest));
    max = largest;
  }
  const float largest = WarpMax(max);
  return largest + logf(WarpSum(sum * Weight(max, largest)));
}

// Ordered keys of max over the lines of (logit - log-sum-exp), four chunks a thread: lines begin at
// multiples of 32 floats, and there is memory up to the next one. Returns the range of the
// thread's. All threads.
template <int kThreads>
__device__ KeyRange MakeKeys(const SelectCall& call,
                             const float* logits,
                             int32_t count,
                             const float* totals,
                             uint32_t* keys) {
  const int64_t stride = call.scratch.chunk_stride / 4;
  KeyRange range;
#pragma unroll(kThreads / 256)
  for (int32_t four = threadIdx.x; 4 * four < count; four += kThreads) {
    const float4* source = reinterpret_cast<const float4*>(logits) + four;
    float scores[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll 4
    for (int32_t g = 0; g < call.group; ++g) {
      const float4 x = source[g * stride];
      const float of_line[4] = {x.x, x.y, x.z, x.w};
      for (int i = 0; i < 4; ++i) scores[i] = fmaxf(scores[i], of_line[i] - totals[g]);
    }
    for (int i = 0; i < 4; ++i) {
      if (4 * four + i >= count) break;
      keys[4 * four + i] = OrderedKey(scores[i]);
      range.Take(OrderedKey(scores[i]));
    }
  }
  return range;
}

// The largest logit of every line among the chunks that are not taken. All threads.
template <int kThreads>
__device__ void FindMaxima(const SelectCall& call,
                           const float* logits,
                           const uint32_t* taken,
                           ChooseShared<kThreads>& shared) {
  const int32_t count = shared.task.count;
  if (threadIdx.x < kMaxGroup) shared.largest[threadIdx.x] = 0;
  __syncthreads();
  for (int32_t g = 0; g < call.group; ++g) {
    uint32_t largest = 0;
    for (int32_t c = threadIdx.x; c < count; c += kThreads) {
      const bool counts = (taken[c / kWarpLanes] >> (c % kWarpLanes) & 1u) == 0;
      const float logit = logits[g * call.scratch.chunk_stride + c];
      largest = max(largest, counts ? OrderedKey(logit) : 0u);
    }
    largest = __reduce_max_sync(kAllLanes, largest);
    if (threadIdx.x % kWarpLanes == 0) atomicMax(&shared.largest[g], largest);
  }
  __syncthreads();
  if (threadIdx.x < call.group) {
    const uint32_t key = shared.largest[threadIdx.x];
    const uint32_t bits = (key >> 31) != 0 ? key & 0x7fffffffu : ~key;
    call.scratch.maxima[FirstLine(call) + threadIdx.x] =
        key == 0 ? -INFINITY : __uint_as_float(bits);
  }
}

// Chooses for KV head y of sequence z, once all its logits are there. kBlocks: of a multiprocessor.
template <int kThreads, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    ChooseKernel(const __grid_constant__ SelectCall call) {
  __shared__ ChooseShared<kThreads> shared;
  const SelectScratch& scratch = call.scratch;
  const int64_t pair = blockIdx.z * int64_t{gridDim.y} + blockIdx.y;
  int32_t* ids = call.params.chunk_ids + pair * call.params.chunk_ids_stride;
  if (threadIdx.x == 0) {
    shared.task = MakeChooseTask(call.params.sequences[blockIdx.z], call.params.bounds.max_chunks);
  }
  WaitForPredecessors();
  for (int64_t i = threadIdx.x; i < call.group * scratch.cluster_stride; i += kThreads) {
    scratch.sums[FirstLine(call) * scratch.cluster_stride + i] = 0;
  }
  __syncthreads();
  const int32_t count = shared.task.count;
  const float* logits = scratch.logits + FirstLine(call) * scratch.chunk_stride;
  const int32_t tiles = (count + kSelectTile - 1) / kSelectTile;
  for (int32_t g = threadIdx.x / kWarpLanes; g < call.group; g += kThreads / kWarpLanes) {
    const float total =
        AddPartials(scratch.partials + (FirstLine(call) + g) * scratch.tiles, tiles);
    if (threadIdx.x % kWarpLanes == 0) shared.totals[g] = total;
  }
  __syncthreads();
  uint32_t* keys = count <= kSharedKeys ? shared.keys : scratch.keys + pair * scratch.chunk_stride;
  ShareRange(MakeKeys<kThreads>(call, logits, count, shared.totals, keys), shared.top_k);
  const Threshold threshold = shared.task.selected > 0
                                  ? FindThreshold(keys, count, shared.task.selected, shared.top_k)
                                  : Threshold{.key = ~0u, .equal = 0};
  const bool clusters = scratch.cluster_stride > 0 && shared.task.clusters > 0;
  uint32_t* taken = clusters ? scratch.taken + pair * scratch.taken_stride() : nullptr;
  WriteTaken(keys, count, threshold, ids, call.params.chunk_ids_stride, taken, shared.top_k);
  if (clusters) FindMaxima(call, logits, taken, shared);
}

template <int kColumnTiles>
struct ClusterShared {
  ScoreTask task;
  ClusterTotals<kColumnTiles> totals;
};

// Adds tokens to the sums of their clusters: those of the x-th kClusterTile chunks, KV head y,
// sequence z.
template <int kHeadDim, int kColumnTiles>
__global__ void __launch_bounds__(kScoreThreads)
    ClusterKernel(const __grid_constant__ SelectCall call) {
  __shared__ ClusterShared<kColumnTiles> shared;
  if (threadIdx.x == 0) {
    shared.task =
        MakeScoreTask(call.params.sequences[blockIdx.z], blockIdx.y, call.params.bounds.max_chunks);
  }
  auto* words = reinterpret_cast<uint32_t*>(&shared.totals);
  for (int32_t i = threadIdx.x; i < static_cast<int32_t>(sizeof(shared.totals) / sizeof(uint32_t));
       i += kScoreThreads) {
    words[i] = 0;
  }
  __syncthreads();
  const ScoreTask& task = shared.task;
  const int32_t first = static_cast<int32_t>(blockIdx.x) * kClusterTile;
  const ChunkRange tile = {first, min(kClusterTile, task.chunks.count - first)};
  if (tile.count <= 0 || task.clusters == 0) return;
  const SelectScratch& scratch = call.scratch;
  const int64_t pair = blockIdx.z * int64_t{gridDim.y} + blockIdx.y;
  const uint32_t* taken = scratch.taken + pair * scratch.taken_stride();
  CodedQueries<kHeadDim, kColumnTiles> queries;
  queries.Load(QueriesOf<kHeadDim>(call, task), call.group);
  const int32_t end = tile.count << task.chunks.token_shift;
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  for (int32_t begin = warp * kTileRows; begin < end; begin += kScoreWarps * kTileRows) {
    TokenPlace tokens[2];
    bool counts[2];
    PlaceTokens(task, tile, begin, tokens, counts);
    for (int row = 0; row < 2; ++row) {
      const int32_t chunk = tokens[row].chunk;
      if ((taken[chunk / kWarpLanes] >> (chunk % kWarpLanes) & 1u) != 0) counts[row] = false;
    }
    AddClusterTile(task,
                   tokens,
                   counts,
                   queries,
                   call.params.scale,
                   scratch.maxima + FirstLine(call),
                   call.group,
                   shared.totals);
    __syncwarp();
  }
  __syncthreads();
  FlushClusters(shared.totals,
                call.group,
                min(task.clusters, static_cast<int32_t>(scratch.cluster_stride)),
                scratch.sums + FirstLine(call) * scratch.cluster_stride,
                scratch.cluster_stride);
}

// Logits of `elements` clusters, [sequences, heads, cluster_stride], from their sums.
__global__ void __launch_bounds__(kScoreThreads)
    ClusterLogitKernel(const __grid_constant__ SelectCall call, int64_t elements) {
  const int64_t i = int64_t{blockIdx.x} * kScoreThreads + threadIdx.x;
  if (i >= elements) return;
  const int64_t stride = call.scratch.cluster_stride;
  const unsigned long long sum = call.scratch.sums[i];
  // Lines of sequences without clusters have no maximum.
  call.params.cluster_logits[i] =
      sum == 0 ? -INFINITY : ClusterLogit(sum, call.scratch.maxima[i / stride]);
}

template <int kThreads, int kBlocks>
cudaError_t LaunchChoose(const DeviceQueue& queue, const SelectCall& call, dim3 pairs) {
  return LaunchEarly(queue, ChooseKernel<kThreads, kBlocks>, pairs, dim3(kThreads), 0, call);
}

// Many small blocks where large ones, which take less time each, would come in several rounds; of
// these more beside each other, which have fewer registers, where that is a round less.
cudaError_t LaunchChoose(const DeviceQueue& queue, const SelectCall& call) {
  const dim3 pairs(1,
                   static_cast<uint32_t>(call.params.bounds.kv_heads),
                   static_cast<uint32_t>(call.params.num_sequences));
  const auto rounds = [&](int64_t blocks) {
    const int64_t round = blocks * queue.multiprocessors();
    return (int64_t{pairs.y} * pairs.z + round - 1) / round;
  };
  if (rounds(2) == 1) return LaunchChoose<512, 2>(queue, call, pairs);
  return rounds(6) < rounds(5) ? LaunchChoose<256, 6>(queue, call, pairs)
                               : LaunchChoose<256, 5>(queue, call, pairs);
}

template <int kHeadDim, int kColumnTiles>
absl::Status Launch(const DeviceQueue& queue, const SelectCall& call) {
  const ShadowKvSelectParams& params = call.params;
  const auto kv_heads = static_cast<uint32_t>(params.bounds.kv_heads);
  const auto rows = static_cast<uint32_t>(params.num_sequences);
  const auto blocks_of = [&](int64_t chunks) {
    return dim3(
        static_cast<uint32_t>((params.bounds.max_chunks + chunks - 1) / chunks), kv_heads, rows);
  };
  const auto score = ScoreKernel<kHeadDim, kColumnTiles>;
  constexpr size_t kBytes = sizeof(ScoreShared<kHeadDim>);
  static_assert(kBytes <= kSharedBytes / kScoreBlocks<kColumnTiles>);
  if (const cudaError_t error = AllowShared(score, kBytes); error != cudaSuccess) {
    return ToStatus(error, "shadowkv_select: shared memory");
  }
  const cudaStream_t stream = queue.stream();
  const dim3 runs = blocks_of(int64_t{kSelectTile} * kScoreWarps * call.tiles);
  cudaError_t error = LaunchEarly(queue, score, runs, dim3(kScoreThreads), kBytes, call);
  if (error == cudaSuccess) error = LaunchChoose(queue, call);
  if (error != cudaSuccess) return ToStatus(error, "shadowkv_select");
  if (call.scratch.cluster_stride > 0) {
    const int64_t elements = params.num_sequences * params.heads * params.cluster_stride;
    const auto blocks = static_cast<uint32_t>((elements + kScoreThreads - 1) / kScoreThreads);
    const dim3 tiles = blocks_of(kClusterTile);
    ClusterKernel<kHeadDim, kColumnTiles><<<tiles, kScoreThreads, 0, stream>>>(call);
    ClusterLogitKernel<<<blocks, kScoreThreads, 0, stream>>>(call, elements);
  }
  return ToStatus(cudaGetLastError(), "shadowkv_select");
}

// Whether one column tile has all query heads of a KV head.
bool IsNarrow(const ShadowKvSelectParams& params) {
  return params.heads <= paged::kColumns * params.bounds.kv_heads;
}

absl::Status LaunchRows(const DeviceQueue& queue, const SelectCall& call) {
  const bool narrow = IsNarrow(call.params);
  if (call.params.bounds.head_dim == 64) {
    return narrow ? Launch<64, 1>(queue, call) : Launch<64, 2>(queue, call);
  }
  return narrow ? Launch<128, 1>(queue, call) : Launch<128, 2>(queue, call);
}

absl::Status Check(const ShadowKvSelectParams& params) {
  ParamChecker check("shadowkv_select");
  const ShadowKvBounds& bounds = params.bounds;
  CheckBounds(bounds, params.heads, check);
  check.NotNull("sequences", params.sequences)
      .NotNull("q", params.q)
      .AtLeast("q_stride", params.q_stride, params.heads * bounds.head_dim)
      .Require(FitsVectors({params.q}, {params.q_stride}),
               "q_stride",
               params.q_stride,
               "q must be aligned to 16 bytes")
      .NotNegative("chunk_ids_stride", params.chunk_ids_stride)
      .NotNegative("cluster_stride", params.cluster_stride)
      .Positive("bounds.max_chunks", bounds.max_chunks)
      .Require(bounds.max_chunks <= INT32_MAX / 2,
               "bounds.max_chunks",
               bounds.max_chunks,
               "is more than ids can name");
  if (params.chunk_ids_stride > 0) check.NotNull("chunk_ids", params.chunk_ids);
  return check.ok() ? CheckSupported("shadowkv_select", bounds, params.heads) : check.status();
}

// Tiles of a warp: as many as end soonest, if blocks come in rounds and each takes as long as one
// tile more before it has its first.
int32_t TilesOfWarp(const DeviceQueue& queue, const ShadowKvSelectParams& params, int64_t rows) {
  const ShadowKvBounds& bounds = params.bounds;
  const int64_t pairs = rows * bounds.kv_heads;
  const int64_t beside = IsNarrow(params) ? kScoreBlocks<1> : kScoreBlocks<2>;
  const int64_t round = beside * queue.multiprocessors();
  const int64_t tiles = (bounds.max_chunks + kSelectTile - 1) / kSelectTile;
  int32_t best = 1;
  int64_t least = INT64_MAX;
  for (int32_t each = 1; each <= kMostTiles; ++each) {
    const int64_t blocks = (tiles + each * kScoreWarps - 1) / (each * kScoreWarps) * pairs;
    const int64_t time = (blocks + round - 1) / round * (each + 1);
    if (time < least) {
      least = time;
      best = each;
    }
  }
  return best;
}

// `count` sequences of a call from `begin` on.
ShadowKvSelectParams SomeSequences(const ShadowKvSelectParams& params,
                                   int64_t begin,
                                   int64_t count) {
  ShadowKvSelectParams some = params;
  some.sequences += begin;
  some.num_sequences = count;
  if (params.chunk_ids != nullptr) {
    some.chunk_ids += begin * params.bounds.kv_heads * params.chunk_ids_stride;
  }
  if (params.cluster_logits != nullptr) {
    some.cluster_logits += begin * params.heads * params.cluster_stride;
  }
  return some;
}

}  // namespace
}  // namespace shadowkv

absl::Status ShadowKvSelect(const ExecContext& context, const ShadowKvSelectParams& params) {
  ParamChecker check("shadowkv_select");
  check.NotNegative("num_sequences", params.num_sequences);
  if (!check.ok() || params.num_sequences == 0) {
    return check.status();
  }
  if (absl::Status status = shadowkv::Check(params); !status.ok()) {
    return status;
  }
  const DeviceQueue& queue = *context.queue;
  const shadowkv::SelectShape shape(params);
  const absl::StatusOr<int64_t> rows =
      shadowkv::RowsOfLaunch("shadowkv_select", queue, shape.Bytes(1));
  if (!rows.ok()) {
    return rows.status();
  }
  for (int64_t begin = 0; begin < params.num_sequences; begin += *rows) {
    const int64_t count = std::min(*rows, params.num_sequences - begin);
    Carver carver(queue.workspace().data());
    const shadowkv::SelectCall call = {
        .params = shadowkv::SomeSequences(params, begin, count),
        .scratch = shape.Carve(count, carver),
        .group = static_cast<int32_t>(params.heads / params.bounds.kv_heads),
        .tiles = shadowkv::TilesOfWarp(queue, params, count)};
    if (absl::Status status = shadowkv::LaunchRows(queue, call); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::cuda
