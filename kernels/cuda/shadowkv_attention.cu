// Attention of a decode step over static, exact and selected tokens.
//
// Four launches: a plan for each KV head and sequence, the reconstruction of the selected keys that
// no cache has, attention over splits of each head's tokens, and the merging of the splits. At
// batch 32, rank 160, 8 KV heads of 128 and a budget of 2048 tokens without hits, reconstruction
// multiplies 2 x 2048 x 160 x 128 flop a head, 21 Gflop in all (27 us of an H200's matrix units),
// and gathers 640 KiB of coefficients a head, 160 MiB in all (40 us of its memory): rows differ
// from head to head. Attention then reads 512 KiB of keys and, in 4 bits, 136 KiB of values a head:
// 162 MiB, 40 us. A cache leaves of the first two what the step before did not select.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/paged_attention_merge.cuh"
#include "kernels/cuda/paged_attention_tile.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_checks.h"
#include "kernels/cuda/shadowkv_decode_workspace.cuh"
#include "kernels/cuda/shadowkv_device.cuh"
#include "kernels/cuda/shadowkv_fetch.cuh"
#include "kernels/cuda/shadowkv_parts.cuh"
#include "kernels/cuda/shadowkv_plan.cuh"
#include "kernels/cuda/shadowkv_reconstruct.cuh"
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

// The head's plan but for what the selected chunks decide. One thread.
__device__ void BeginPlan(const AttendCall& call, PlanShared& shared) {
  const ShadowKvSequence& sequence = call.params.sequences[blockIdx.z];
  const SequencePlaces places(sequence);
  shared.plan = {};
  shared.plan.row = sequence.row;
  PlanExact(places, blockIdx.y, shared.plan);
  PlanCoded(places, blockIdx.y, shared.plan);
  PlanKeys(places,
           blockIdx.y,
           sequence.cache,
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

// What is known once the chunks have their slots. One thread.
__device__ void EndPlan(const AttendCall& call, int32_t misses, PlanShared& shared) {
  HeadPlan& plan = shared.plan;
  plan.selected = shared.selected;
  plan.misses = misses;
  plan.tokens = plan.exact_end + (plan.selected << plan.chunks.token_shift);
  if (ShadowKvCounters* counters = call.params.sequences[blockIdx.z].counters;
      counters != nullptr) {
    const auto add = [](int64_t& counter, int64_t value) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&counter),
                static_cast<unsigned long long>(value));
    };
    add(counters->hits, plan.selected - misses);
    add(counters->misses, misses);
    add(counters->attended_tokens, int64_t{plan.tokens} + plan.clusters);
  }
  if (call.params.cluster_logits == nullptr) plan.clusters = 0;
  call.scratch.plans[PairOfBlock()] = plan;
}

__global__ void __launch_bounds__(kPlanThreads)
    PlanKernel(const __grid_constant__ AttendCall call) {
  __shared__ PlanShared shared;
  if (threadIdx.x == 0) BeginPlan(call, shared);
  __syncthreads();
  const AttendScratch& scratch = call.scratch;
  const int32_t* ids = IdsOfBlock(call);
  const CacheTable& table = shared.table;
  int32_t* freed = scratch.freed + PairOfBlock() * scratch.freed_stride;
  int32_t* slots = scratch.slots + PairOfBlock() * scratch.slot_stride;
  int2* chunks = scratch.misses + PairOfBlock() * scratch.slot_stride;
  CountBefore(ids, shared.id_limit, -1, &shared.selected);
  CountBefore(table.ids, table.count, 0, &shared.used);
  __syncthreads();
  FreeSlots(table, ids, freed, shared);
  const int32_t misses = PlaceChunks(table, ids, freed, slots, chunks, shared);
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

template <int kHeadDim, int kColumnTiles>
struct alignas(128) AttendShared {
  union {
    FetchShared<kHeadDim> fetch;
    paged::MergeArea<kHeadDim, kColumnTiles> area;
    ClusterWeights clusters;
  };
  HeadPlan plan;
};

// Attention over the range's tokens, in warp 0. All threads.
template <int kHeadDim, int kColumnTiles>
__device__ void AttendSplit(const AttendCall& call,
                            const HeadTokens& tokens,
                            const TokenRange& range,
                            AttendShared<kHeadDim, kColumnTiles>& shared,
                            paged::Running<kHeadDim, kColumnTiles>& running) {
  FetchShared<kHeadDim>& fetch = shared.fetch;
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  const int32_t value_bits = tokens.plan.value_bits;
  FindStage(tokens, range, 0, 0, fetch);
  FindStage(tokens, range, 1, kStage, fetch);
  paged::Queries<kHeadDim, kColumnTiles> queries;
  queries.Load(QueriesOf(call, tokens.plan.row, kHeadDim), call.group);
  running.Clear();
  __syncthreads();
  BeginStage(value_bits, 0, fetch);
  BeginStage(value_bits, 1, fetch);
  WaitForCopies<1>();
  __syncthreads();
  FindStage(tokens, range, 2, 0, fetch);
  DequantizeStage(tokens, range, 0, fetch);
  for (int32_t stage = 0; stage < range.stages(); ++stage) {
    WaitForCopies<0>();
    // The stage is bf16 in all its rows, the next one is there, all have left the one before.
    __syncthreads();
    if (stage + 2 < range.stages()) BeginStage(value_bits, stage + 2, fetch);
    DequantizeStage(tokens, range, stage + 1, fetch);
    paged::FoldTile(
        fetch.stages[stage % kStages],
        warp,
        {.position = range.begin + stage * kStage, .first = range.begin, .end = range.end},
        call.score_scale,
        queries,
        running);
    if (stage + 3 < range.stages()) FindStage(tokens, range, stage + 3, 0, fetch);
  }
  __syncthreads();
  paged::MergeWarps(warp, shared.area, running);
}

// Attention over parts of a head: block x takes the parts x, x + gridDim.x, ...
template <int kHeadDim, int kColumnTiles>
__global__ void __launch_bounds__(kAttendThreads, kAttendBlocks)
    AttendKernel(const __grid_constant__ AttendCall call) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<AttendShared<kHeadDim, kColumnTiles>*>(memory);
  if (threadIdx.x == 0) shared.plan = call.scratch.plans[PairOfBlock()];
  __syncthreads();
  const HeadPlan& plan = shared.plan;
  const HeadTokens tokens = {
      .plan = plan,
      .ids = IdsOfBlock(call),
      .slots = call.scratch.slots + PairOfBlock() * call.scratch.slot_stride};
  const auto splits = static_cast<int32_t>(Splits(plan.tokens));
  const auto split_tokens = static_cast<int32_t>(SplitTokens(plan.tokens));
  for (int32_t split = blockIdx.x; split < splits; split += static_cast<int32_t>(gridDim.x)) {
    const TokenRange range = {.begin = split * split_tokens,
                              .end = min((split + 1) * split_tokens, plan.tokens)};
    paged::Running<kHeadDim, kColumnTiles> running;
    AttendSplit(call, tokens, range, shared, running);
    if (threadIdx.x < kWarpLanes) {
      WritePart(call.group, PartOf(call, PairOfBlock(), split), running);
    }
    __syncthreads();
  }
  if (plan.clusters > 0 && splits % gridDim.x == blockIdx.x) {
    AttendClusters<kHeadDim>(call, plan, PartOf(call, PairOfBlock(), splits), shared.clusters);
  }
}

// The results of a head from its parts.
template <int kHeadDim>
__global__ void __launch_bounds__(kAttendThreads)
    MergeKernel(const __grid_constant__ AttendCall call) {
  const HeadPlan& plan = call.scratch.plans[PairOfBlock()];
  const auto splits = static_cast<int32_t>(Splits(plan.tokens));
  MergeParts<kHeadDim>(call, plan.row, PairOfBlock(), splits + (plan.clusters > 0 ? 1 : 0));
}

template <typename Kernel>
cudaError_t AllowShared(Kernel kernel, size_t bytes) {
  cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  }
  return error;
}

// Blocks of a head's attention: a block for each part if the head has no more tokens than the
// caller knows.
uint32_t PartsOfGrid(const ShadowKvAttentionParams& params) {
  const ShadowKvBounds& bounds = params.bounds;
  const int64_t tokens = bounds.max_exact_tokens + bounds.max_budget_tokens;
  const int64_t splits = bounds.max_exact_tokens > 0 ? Splits(tokens) : kMaxSplits;
  return static_cast<uint32_t>(splits + (params.cluster_logits != nullptr ? 1 : 0));
}

template <int kHeadDim, int kColumnTiles>
absl::Status Launch(const DeviceQueue& queue, const AttendCall& call) {
  constexpr size_t kKeyBytes = sizeof(KeyShared<kHeadDim>);
  constexpr size_t kAttendBytes = sizeof(AttendShared<kHeadDim, kColumnTiles>);
  static_assert(kKeyBytes <= kSharedBytes / kKeyBlocks);
  static_assert(kAttendBytes <= kSharedBytes / kAttendBlocks);
  const auto reconstruct = ReconstructKernel<kHeadDim>;
  const auto attend = AttendKernel<kHeadDim, kColumnTiles>;
  cudaError_t error = AllowShared(reconstruct, kKeyBytes);
  if (error == cudaSuccess) error = AllowShared(attend, kAttendBytes);
  if (error != cudaSuccess) {
    return ToStatus(error, "shadowkv_attention: shared memory");
  }
  const ShadowKvAttentionParams& params = call.params;
  const auto kv_heads = static_cast<uint32_t>(params.bounds.kv_heads);
  const auto rows = static_cast<uint32_t>(params.num_sequences);
  const auto tiles =
      static_cast<uint32_t>((params.bounds.max_budget_tokens + kKeyTile - 1) / kKeyTile);
  const cudaStream_t stream = queue.stream();
  const dim3 pairs(1, kv_heads, rows);
  PlanKernel<<<pairs, kPlanThreads, 0, stream>>>(call);
  if (tiles > 0) {
    reconstruct<<<dim3(tiles, kv_heads, rows), kKeyThreads, kKeyBytes, stream>>>(call);
  }
  attend<<<dim3(PartsOfGrid(params), kv_heads, rows), kAttendThreads, kAttendBytes, stream>>>(call);
  MergeKernel<kHeadDim><<<pairs, kAttendThreads, 0, stream>>>(call);
  return ToStatus(cudaGetLastError(), "shadowkv_attention");
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
               "is more than a plan can number");
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
        .score_scale = params.scale * shadowkv::kLog2E};
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
