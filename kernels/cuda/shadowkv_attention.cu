// Attention of a decode step over static, exact and selected tokens.
//
// Three launches: a plan for each KV head and sequence, the reconstruction of the selected keys
// that no cache has, and attention over splits of each head's tokens, which the last of its blocks
// merges; with values apart a fourth one, which brings them beside the second. At batch 32, rank
// 160, 8 KV heads of 128 and a budget of 2048 tokens without hits, reconstruction multiplies 2 x
// 2048 x 160 x 128 flop a head, 21 Gflop in all (27 us of an H200's matrix units), and gathers 640
// KiB of coefficients a head, 160 MiB in all (40 us of its memory): rows differ from head to head.
// Attention then reads 512 KiB of keys and, in 4 bits, 136 KiB of values a head: 162 MiB, 40 us. A
// cache leaves of the first two what the step before did not select.
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
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/paged_attention_merge.cuh"
#include "kernels/cuda/paged_attention_tile.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/early_launch.h"
#include "kernels/cuda/shadowkv_checks.h"
#include "kernels/cuda/shadowkv_chunk_keys.h"
#include "kernels/cuda/shadowkv_coded_tile.cuh"
#include "kernels/cuda/shadowkv_decode_workspace.cuh"
#include "kernels/cuda/shadowkv_device.cuh"
#include "kernels/cuda/shadowkv_fetch.cuh"
#include "kernels/cuda/shadowkv_parts.cuh"
#include "kernels/cuda/shadowkv_plan.cuh"
#include "kernels/cuda/shadowkv_reconstruct.cuh"
#include "kernels/cuda/shadowkv_value_cache.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda {
namespace shadowkv {
namespace {

// The grid's y and z are KV head and sequence in all kernels.
__device__ int64_t PairOfBlock() { return blockIdx.z * int64_t{gridDim.y} + blockIdx.y; }
__device__ const int32_t* IdsOfBlock(const AttendCall& call) {
  return call.params.chunk_ids + PairOfBlock() * call.params.chunk_ids_stride;
}

// Where the head's selected chunks are to be found, and how many may be. One thread.
__device__ void PlanSelected(const AttendCall& call,
                             const ShadowKvSequence& sequence,
                             const SequencePlaces& places,
                             PlanShared& shared) {
  PlanKeys(places,
           blockIdx.y,
           sequence.cache,
           call.params.bounds.caches_values,
           call.scratch.keys + PairOfBlock() * call.scratch.key_bytes,
           shared);
  const int64_t budget = places.config().budget_chunks();
  const bool fits = budget * places.config().chunk_tokens <= call.params.bounds.max_budget_tokens &&
                    (sequence.cache != nullptr || call.scratch.key_bytes > 0);
  // A sequence past the call's bounds has no memory set aside: nothing of it is selected.
  if (!fits) shared.table.count = 0;
  shared.id_limit = fits ? static_cast<int32_t>(min(budget, call.params.chunk_ids_stride)) : 0;
  shared.selected = shared.id_limit;
  shared.used = shared.table.count;
}

// The head's plan but for what the selected chunks decide: the first threads of three warps make a
// part each. All threads.
__device__ void BeginPlan(const AttendCall& call, PlanShared& shared) {
  if (threadIdx.x % kWarpLanes != 0) return;
  const ShadowKvSequence& sequence = call.params.sequences[blockIdx.z];
  const SequencePlaces places(sequence);
  switch (threadIdx.x / kWarpLanes) {
    case 0:
      return PlanSelected(call, sequence, places, shared);
    case 1:
      shared.plan.row = sequence.row;
      return PlanExact(places, blockIdx.y, shared.plan);
    case 2:
      return PlanCoded(places, blockIdx.y, shared.plan);
  }
}

// What is known once the chunks have their slots. One thread.
__device__ void EndPlan(const AttendCall& call, int32_t misses, PlanShared& shared) {
  HeadPlan& plan = shared.plan;
  plan.selected = shared.selected;
  plan.misses = misses;
  const int32_t tokens = plan.selected << plan.chunks.token_shift;
  plan.tokens = tokens > 0 ? plan.selected_begin + tokens : plan.exact_end;
  if (ShadowKvCounters* counters = call.params.sequences[blockIdx.z].counters;
      counters != nullptr) {
    const auto add = [](int64_t& counter, int64_t value) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&counter),
                static_cast<unsigned long long>(value));
    };
    add(counters->hits, plan.selected - misses);
    add(counters->misses, misses);
    add(counters->attended_tokens, int64_t{plan.exact_end} + tokens + plan.clusters);
  }
  if (call.params.cluster_logits == nullptr) plan.clusters = 0;
  call.scratch.plans[PairOfBlock()] = plan;
  call.scratch.ended[PairOfBlock()] = 0;
}

__global__ void __launch_bounds__(kPlanThreads, kPlanBlocks)
    PlanKernel(const __grid_constant__ AttendCall call) {
  __shared__ PlanShared shared;
  const AttendScratch& scratch = call.scratch;
  LaunchDependents();
  BeginPlan(call, shared);
  WaitForPredecessors();
  const int32_t* ids = StageIds(IdsOfBlock(call), call.params.chunk_ids_stride, shared.ids);
  __syncthreads();
  const CacheTable& table = shared.table;
  const int32_t* table_ids = StageIds(table.ids, table.count, shared.table_ids);
  int32_t* freed = scratch.freed + PairOfBlock() * scratch.freed_stride;
  int32_t* slots = scratch.slots + PairOfBlock() * scratch.slot_stride;
  int2* chunks = scratch.misses + PairOfBlock() * scratch.slot_stride;
  CountBefore(ids, shared.id_limit, -1, &shared.selected);
  CountBefore(table_ids, table.count, 0, &shared.used);
  __syncthreads();
  FreeSlots(table, table_ids, ids, freed, shared);
  const int32_t misses = PlaceChunks(table, table_ids, ids, freed, slots, chunks, shared);
  __syncthreads();
  WriteTable(table, ids, slots, freed, shared.selected, misses);
  if (threadIdx.x == 0) EndPlan(call, misses, shared);
}

// Keys of the misses: block x takes the tiles x, x + gridDim.x, ...
template <int kHeadDim>
__global__ void __launch_bounds__(kKeyThreads, kKeyBlocks)
    ReconstructKernel(const __grid_constant__ AttendCall call) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<KeyShared<kHeadDim>*>(memory);
  const HeadPlan& plan = call.scratch.plans[PairOfBlock()];
  const int32_t tokens = plan.misses << plan.chunks.token_shift;
  const auto first = static_cast<int32_t>(blockIdx.x) * kKeyTile;
  if (first >= tokens) return;
  if (threadIdx.x == 0) shared.plan = plan;
  __syncthreads();
  const int2* misses = call.scratch.misses + PairOfBlock() * call.scratch.slot_stride;
  const float* bias = call.params.key_bias == nullptr
                          ? nullptr
                          : call.params.key_bias + int64_t{blockIdx.y} * kHeadDim;
  for (int32_t begin = first; begin < tokens; begin += static_cast<int32_t>(gridDim.x) * kKeyTile) {
    FindKeyTokens(misses, begin, shared);
    __syncthreads();
    KeyProducts<kHeadDim> products;
    MultiplyKeys(shared, products);
    RotateKeys(call.params.rope, bias, products, shared);
    __syncthreads();
    StoreKeys(shared);
    __syncthreads();
  }
}

template <int kHeadDim>
struct alignas(128) AttendShared {
  union {
    FetchShared<kHeadDim> fetch;
    ClusterWeights clusters;
  };
  HeadPlan plan;
  bool last;  // of the head's blocks to end
};

// The splits of a head that a block attends: neighbours, so that the tokens of the next one are on
// their way when one ends.
struct SplitRun {
  int32_t first;
  int32_t count;
  int32_t stages;  // of a split
  TokenRange tokens;
};

// Block x's share of the head's splits.
__device__ inline SplitRun SplitsOfBlock(const HeadPlan& plan) {
  const auto splits = static_cast<int32_t>(Splits(plan.tokens));
  const auto split_tokens = static_cast<int32_t>(SplitTokens(plan.tokens));
  const auto blocks = static_cast<int32_t>(gridDim.x);
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t first = splits * block / blocks;
  const int32_t end = splits * (block + 1) / blocks;
  return {.first = first,
          .count = end - first,
          .stages = split_tokens / kStage,
          .tokens = {.begin = first * split_tokens, .end = min(end * split_tokens, plan.tokens)}};
}

// Writes what the warps have of a split and begins the next one. All threads; `area` is nobody's
// until they meet again.
template <int kHeadDim, int kColumnTiles>
__device__ void EndSplit(const AttendCall& call,
                         int32_t split,
                         paged::MergeArea<kHeadDim, kColumnTiles>& area,
                         paged::Running<kHeadDim, kColumnTiles>& running) {
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  paged::MergeWarps(warp, area, running);
  if (warp == 0) WritePart(call.group, PartOf(call, PairOfBlock(), split), running);
  running.Clear();
}

// Attention of the warp over its tile of a stage that is there.
template <int kHeadDim, int kColumnTiles>
__device__ void FoldStage(float score_scale,
                          const HeadTokens& tokens,
                          const TokenRange& range,
                          int32_t stage,
                          const paged::Queries<kHeadDim, kColumnTiles>& queries,
                          CodedShift<kColumnTiles>& shift,
                          paged::Running<kHeadDim, kColumnTiles>& running,
                          FetchShared<kHeadDim>& fetch) {
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  const std::byte* memory = fetch.stages[stage % kStages];
  const int32_t value_bits = tokens.plan.value_bits;
  const bool selected = tokens.Selected(range.Token(stage));
  const paged::StageKeys keys = {
      .position = range.Token(stage),
      .first = range.begin,
      .end = selected ? range.end : min(range.end, tokens.plan.exact_end)};
  if (selected && value_bits == 4) {
    FoldCodedTile(
        memory, fetch.ranges[stage % kStages], warp, keys, score_scale, queries, shift, running);
    return;
  }
  if (selected && tokens.coded) DequantizeStage(value_bits, range, stage, fetch);
  paged::FoldTile(memory, warp, keys, score_scale, queries, running);
}

// Attention over the tokens of a run, a part for each of its splits. All threads.
template <int kHeadDim, int kColumnTiles>
__device__ void AttendSplits(const AttendCall& call,
                             const HeadTokens& tokens,
                             const SplitRun& run,
                             FetchShared<kHeadDim>& fetch) {
  using Area = paged::MergeArea<kHeadDim, kColumnTiles>;
  static_assert(sizeof(Area) <= sizeof(fetch.stages[0]) && alignof(Area) <= 128);
  const TokenRange& range = run.tokens;
  StagePlace next = PeekStage(tokens, range, 0);
  StagePlace ahead = PeekStage(tokens, range, 1);
  FindStage(tokens, range, 0, next, fetch);
  FindStage(tokens, range, 1, ahead, fetch);
  paged::Queries<kHeadDim, kColumnTiles> queries;
  queries.Load(QueriesOf(call, tokens.plan.row, kHeadDim), call.group);
  paged::Running<kHeadDim, kColumnTiles> running;
  running.Clear();
  CodedShift<kColumnTiles> shift;
  __syncthreads();
  BeginStage(tokens, range, 0, next, fetch);
  for (int32_t stage = 0; stage < range.stages(); ++stage) {
    WaitForCopies<0>();
    __syncthreads();  // the stage is there, all have left the one before
    next = ahead;
    if (stage + 1 < range.stages()) BeginStage(tokens, range, stage + 1, next, fetch);
    ahead = PeekStage(tokens, range, stage + 2);
    FoldStage(call.score_scale, tokens, range, stage, queries, shift, running, fetch);
    FindStage(tokens, range, stage + 2, ahead, fetch);
    if ((stage + 1) % run.stages == 0 || stage + 1 == range.stages()) {
      shift.AddTo(running);
      __syncthreads();  // all have left the stage, whose memory the merge takes
      auto& area = *reinterpret_cast<Area*>(fetch.stages[stage % kStages]);
      EndSplit(call, run.first + stage / run.stages, area, running);
    }
  }
}

// Whether this is the last of the head's blocks to end: what all of them wrote is to be seen then.
// All threads.
__device__ bool EndsLast(const AttendCall& call, bool& last) {
  __syncthreads();
  if (threadIdx.x == 0) {
    last = CountsLast(&call.scratch.ended[PairOfBlock()], static_cast<int32_t>(gridDim.x));
  }
  __syncthreads();
  return last;
}

// Attention over parts of a head: block x takes the x-th share of its splits, the first one also
// the value clusters; the last one to end merges them.
template <int kHeadDim, int kColumnTiles>
__global__ void __launch_bounds__(kAttendThreads, kColumnTiles == 1 ? kAttendBlocks : 2)
    AttendKernel(const __grid_constant__ AttendCall call) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<AttendShared<kHeadDim>*>(memory);
  WaitForPredecessors();
  if (threadIdx.x == 0) shared.plan = call.scratch.plans[PairOfBlock()];
  __syncthreads();
  const HeadPlan& plan = shared.plan;
  const HeadTokens tokens(
      plan, IdsOfBlock(call), call.scratch.slots + PairOfBlock() * call.scratch.slot_stride);
  const SplitRun run = SplitsOfBlock(plan);
  if (run.count > 0) AttendSplits<kHeadDim, kColumnTiles>(call, tokens, run, shared.fetch);
  const auto splits = static_cast<int32_t>(Splits(plan.tokens));
  if (plan.clusters > 0 && blockIdx.x == 0) {
    __syncthreads();
    AttendClusters<kHeadDim>(call, plan, PartOf(call, PairOfBlock(), splits), shared.clusters);
  }
  if (EndsLast(call, shared.last)) {
    MergeParts<kHeadDim>(call, plan.row, PairOfBlock(), splits + (plan.clusters > 0 ? 1 : 0));
  }
}

// Blocks of a head's attention: as many as it has splits, if its tokens are no more than the caller
// knows, or fewer where that still gives every multiprocessor work for several rounds.
uint32_t AttendBlocks(const DeviceQueue& queue, const ShadowKvAttentionParams& params) {
  constexpr int64_t kRounds = 4;
  const ShadowKvBounds& bounds = params.bounds;
  const int64_t exact_stages = (bounds.max_exact_tokens + kStage - 1) / kStage;
  const int64_t tokens = exact_stages * kStage + bounds.max_budget_tokens;
  const int64_t splits = bounds.max_exact_tokens > 0 ? Splits(tokens) : kMaxSplits;
  return BlocksOfHead(queue, params, kRounds, kAttendBlocks, splits);
}

// Gives the queue the keys of the misses, whatever their sequences' shapes.
template <int kHeadDim>
absl::Status ReconstructAny(const DeviceQueue& queue, const AttendCall& call) {
  constexpr size_t kBytes = sizeof(KeyShared<kHeadDim>);
  static_assert(kBytes <= kSharedBytes / kKeyBlocks);
  const auto kernel = ReconstructKernel<kHeadDim>;
  if (const cudaError_t error = AllowShared(kernel, kBytes); error != cudaSuccess) {
    return ToStatus(error, "shadowkv_attention: shared memory");
  }
  const ShadowKvBounds& bounds = call.params.bounds;
  const dim3 grid(static_cast<uint32_t>((bounds.max_budget_tokens + kKeyTile - 1) / kKeyTile),
                  static_cast<uint32_t>(bounds.kv_heads),
                  static_cast<uint32_t>(call.params.num_sequences));
  kernel<<<grid, kKeyThreads, kBytes, queue.stream()>>>(call);
  return ToStatus(cudaGetLastError(), "shadowkv_attention: keys");
}

// Keys, and values that are apart, of the misses.
template <int kHeadDim>
absl::Status Reconstruct(const DeviceQueue& queue, const AttendCall& call) {
  const ShadowKvBounds& bounds = call.params.bounds;
  if (bounds.max_budget_tokens == 0) return absl::OkStatus();
  if (bounds.caches_values) {
    if (absl::Status status = CacheValues(queue, call); !status.ok()) return status;
  }
  return bounds.chunk_key_rank > 0 ? ReconstructChunks(queue, call)
                                   : ReconstructAny<kHeadDim>(queue, call);
}

template <int kHeadDim, int kColumnTiles>
absl::Status Launch(const DeviceQueue& queue, const AttendCall& call) {
  constexpr size_t kBytes = sizeof(AttendShared<kHeadDim>);
  static_assert(kBytes <= kSharedBytes / kAttendBlocks && kBytes <= kAnyBlockBytes);
  const auto attend = AttendKernel<kHeadDim, kColumnTiles>;
  if (const cudaError_t error = AllowShared(attend, kBytes); error != cudaSuccess) {
    return ToStatus(error, "shadowkv_attention: shared memory");
  }
  const ShadowKvAttentionParams& params = call.params;
  const auto kv_heads = static_cast<uint32_t>(params.bounds.kv_heads);
  const auto rows = static_cast<uint32_t>(params.num_sequences);
  const cudaStream_t stream = queue.stream();
  const dim3 pairs(1, kv_heads, rows);
  cudaError_t error = LaunchEarly(queue, PlanKernel, pairs, dim3(kPlanThreads), 0, call);
  if (error != cudaSuccess) return ToStatus(error, "shadowkv_attention: plan");
  if (absl::Status status = Reconstruct<kHeadDim>(queue, call); !status.ok()) {
    return status;
  }
  const dim3 blocks(AttendBlocks(queue, params), kv_heads, rows);
  error = LaunchEarly(queue, attend, blocks, dim3(kAttendThreads), kBytes, call);
  return ToStatus(error, "shadowkv_attention");
}

absl::Status LaunchRows(const DeviceQueue& queue, const AttendCall& call) {
  const bool narrow = call.group <= paged::kColumns;
  if (call.params.bounds.head_dim == 64) {
    return narrow ? Launch<64, 1>(queue, call) : Launch<64, 2>(queue, call);
  }
  return narrow ? Launch<128, 1>(queue, call) : Launch<128, 2>(queue, call);
}

absl::Status Check(const ShadowKvAttentionParams& params) {
  ParamChecker check("shadowkv_attention");
  const ShadowKvBounds& bounds = params.bounds;
  CheckBounds(bounds, params.heads, check);
  const int64_t width = params.heads * bounds.head_dim;
  check.NotNull("sequences", params.sequences)
      .NotNull("q", params.q)
      .NotNull("out", params.out)
      .NotNull("rope.cosines", params.rope.cosines)
      .NotNull("rope.sines", params.rope.sines)
      .Positive("rope.positions", params.rope.positions)
      .AtLeast("q_stride", params.q_stride, width)
      .AtLeast("out_stride", params.out_stride, width)
      .Require(FitsVectors({params.q, params.out}, {params.q_stride, params.out_stride}),
               "q_stride",
               params.q_stride,
               "q and out must be aligned to 16 bytes")
      .NotNegative("chunk_ids_stride", params.chunk_ids_stride)
      .NotNegative("cluster_stride", params.cluster_stride)
      .NotNegative("bounds.max_exact_tokens", bounds.max_exact_tokens)
      .Require(bounds.max_budget_tokens <= INT32_MAX / 2,
               "bounds.max_budget_tokens",
               bounds.max_budget_tokens,
               "is more than a plan can number")
      .Require(bounds.chunk_key_rank == 0 || bounds.head_dim == kShadowKvChunkKeyDim,
               "bounds.head_dim",
               bounds.head_dim,
               "is not one of keys by chunks")
      .Require(
          bounds.chunk_key_rank == 0 || FitsVectors({params.rope.cosines, params.rope.sines}, {}),
          "bounds.chunk_key_rank",
          bounds.chunk_key_rank,
          "needs angles that are aligned to 16 bytes");
  if (params.chunk_ids_stride > 0) {
    check.NotNull("chunk_ids", params.chunk_ids)
        .Positive("bounds.max_budget_tokens", bounds.max_budget_tokens);
  }
  return check.ok() ? CheckSupported("shadowkv_attention", bounds, params.heads) : check.status();
}

// `count` sequences of a call from `begin` on.
ShadowKvAttentionParams SomeSequences(const ShadowKvAttentionParams& params,
                                      int64_t begin,
                                      int64_t count) {
  ShadowKvAttentionParams some = params;
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

absl::Status ShadowKvAttention(const ExecContext& context, const ShadowKvAttentionParams& params) {
  ParamChecker check("shadowkv_attention");
  check.NotNegative("num_sequences", params.num_sequences);
  if (!check.ok() || params.num_sequences == 0) {
    return check.status();
  }
  if (absl::Status status = shadowkv::Check(params); !status.ok()) {
    return status;
  }
  const DeviceQueue& queue = *context.queue;
  const shadowkv::AttendShape shape(params);
  const absl::StatusOr<int64_t> rows =
      shadowkv::RowsOfLaunch("shadowkv_attention", queue, shape.Bytes(1));
  if (!rows.ok()) {
    return rows.status();
  }
  for (int64_t begin = 0; begin < params.num_sequences; begin += *rows) {
    const int64_t count = std::min(*rows, params.num_sequences - begin);
    Carver carver(queue.workspace().data());
    const shadowkv::AttendCall call = {
        .params = shadowkv::SomeSequences(params, begin, count),
        .scratch = shape.Carve(count, carver),
        .group = static_cast<int32_t>(params.heads / params.bounds.kv_heads),
        .score_scale = params.scale * kLog2E};
    if (absl::Status status = shadowkv::LaunchRows(queue, call); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

size_t ShadowKvDecodeWorkspaceBytes(const ShadowKvWorkspaceSizes& sizes) {
  const size_t row_bytes =
      std::max(shadowkv::SelectShape(sizes).Bytes(1), shadowkv::AttendShape(sizes).Bytes(1));
  return row_bytes * static_cast<size_t>(std::max<int64_t>(1, sizes.sequences));
}

}  // namespace baton::kernels::cuda
