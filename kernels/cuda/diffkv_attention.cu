// Attention of one query per sequence over both tiers of quantized pages (docs/kernels/diffkv.md).
//
// The pages of one KV head of one row are cut into splits, whose number depends on that head alone.
// A fixed number of blocks shares the splits out. In a block four warps compute: they take a page
// each in turn and keep their own softmax. One warp starts the copies of pages into a ring in
// shared memory (diffkv_attention_fetch.cuh). One finds splits and makes their queries ahead of it
// (diffkv_attention_prepare.cuh), adds up what the computing warps found at the end of a split, and
// merges splits whose last one the block has ended (diffkv_attention_merging_warp.cuh).
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/diffkv_attention_fetch.cuh"
#include "kernels/cuda/diffkv_attention_kept.cuh"
#include "kernels/cuda/diffkv_attention_merge.cuh"
#include "kernels/cuda/diffkv_attention_merging_warp.cuh"
#include "kernels/cuda/diffkv_attention_plan.cuh"
#include "kernels/cuda/diffkv_attention_scores.cuh"
#include "kernels/cuda/diffkv_checks.h"
#include "kernels/cuda/diffkv_page_attention.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/early_launch.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace diffkv {
namespace {

template <int kDim, int kKeyBits, int kValueBits, bool kPaired>
__device__ void AttendPage(const Plan& plan,
                           const Slot& slot,
                           const std::byte* data,
                           const DiffKvQueries<kDim, kPaired>& queries,
                           DiffKvSoftmax<kDim, kPaired>& softmax) {
  using Planes = DiffKvPlanes<kPaired>;
  constexpr int kTiles = DiffKvTiles(DiffKvPageTokens({kKeyBits, kValueBits}));
  DiffKvSharedPage page = {.data = data, .tokens = slot.tokens, .positions = nullptr, .oldest = 0};
  if (plan.params.sliding_window > 0) {
    page.positions = reinterpret_cast<const int32_t*>(
        slot.page + DiffKvPageLayout{kDim, {kKeyBits, kValueBits}}.positions());
    page.oldest = plan.params.rows[slot.row].position - plan.params.sliding_window + 1;
  }
  float unit[Planes::kHeads];
#pragma unroll
  for (int c = 0; c < Planes::kHeads; ++c) {
    unit[c] = queries.unit[Planes::Head(c)] / DiffKvKeyTimes(kKeyBits);
  }
  DiffKvScores<kTiles, kPaired> scores;
  ScorePage<kDim, kKeyBits, kValueBits, kPaired, kTiles>(page, queries, scores);
  WeighPage<kDim, kPaired, kTiles>(unit, scores, softmax);
  if (plan.params.scored) KeepWeights<kPaired, kTiles>(plan, slot, softmax.max, scores);
  AddValues<kDim, kKeyBits, kValueBits, kPaired, kTiles>(page, scores, softmax);
}

template <int kDim, bool kPaired>
__device__ void AttendSlot(const Plan& plan,
                           const Slot& slot,
                           const std::byte* data,
                           const Shared<kDim, kPaired>& shared,
                           DiffKvSoftmax<kDim, kPaired>& softmax) {
  const DiffKvTier tier = plan.params.pages.geometry.tiers[slot.flags & kLowTier];
  const DiffKvQueries<kDim, kPaired>& queries = shared.queries[slot.flags >> kQueryBit];
  if (tier.key_bits == 4 && tier.value_bits == 2) {
    AttendPage<kDim, 4, 2, kPaired>(plan, slot, data, queries, softmax);
  } else if (tier.key_bits == 8 && tier.value_bits == 4) {
    AttendPage<kDim, 8, 4, kPaired>(plan, slot, data, queries, softmax);
  } else if (tier.key_bits == 4) {
    AttendPage<kDim, 4, 4, kPaired>(plan, slot, data, queries, softmax);
  } else {
    AttendPage<kDim, 8, 8, kPaired>(plan, slot, data, queries, softmax);
  }
}

// A computing warp: attends its pages, and gives what it found at the end of every split.
template <int kDim, bool kPaired>
__device__ void Consume(const Plan& plan,
                        const Workspace& workspace,
                        Counters& counters,
                        Shared<kDim, kPaired>& shared) {
  const int32_t warp = threadIdx.x / 32;
  DiffKvSoftmax<kDim, kPaired> softmax;
  Reset(softmax);
  int32_t ordinal = 0;  // splits ended
  for (RingPlace<Shared<kDim, kPaired>::kRounds> round;; round.Next()) {
    BarrierWait(&shared.full[round.place][warp], round.parity);
    const Slot slot = shared.slots[round.place][warp];
    if (slot.flags & kBegins) BarrierWait(&shared.asked[ordinal % 2], ordinal / 2 & 1);
    if (slot.tokens > 0) {
      AttendSlot<kDim, kPaired>(plan, slot, shared.pages[round.place][warp], shared, softmax);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) BarrierArrive(&shared.empty[round.place]);
    if (slot.flags & kStop) break;
    if ((slot.flags & kEnds) == 0) continue;
    EndSplit<kDim, kPaired>(slot, ordinal++, softmax, shared);
    Reset(softmax);
  }
  BarrierWait(&shared.left.complete, 0);
  for (int32_t i = 0; i < shared.left.count; ++i) {
    WithLanes<kPaired>(workspace, [&](auto lanes) {
      MergeByBlock<kDim, kPaired, lanes.value>(
          plan, workspace, shared.left.merges[i], counters, shared.left.last);
    });
  }
}

template <int kDim, bool kPaired>
__global__ void __launch_bounds__(kThreads, RingBlocks(kHopperCode))
    AttentionKernel(const __grid_constant__ Plan plan,
                    const Workspace workspace,
                    Counters* counters) {
  extern __shared__ __align__(128) std::byte memory[];
  Shared<kDim, kPaired>& shared = *reinterpret_cast<Shared<kDim, kPaired>*>(memory);
  constexpr int32_t kRounds = Shared<kDim, kPaired>::kRounds;
  for (int32_t i = threadIdx.x; i < kRounds * kConsumers; i += kThreads) {
    BarrierInit(&shared.full[i / kConsumers][i % kConsumers], 1);
  }
  for (int32_t i = threadIdx.x; i < kRounds; i += kThreads) {
    BarrierInit(&shared.empty[i], kConsumers);
  }
  if (threadIdx.x == 0) {
    BarrierInit(&shared.given, kConsumers);
    BarrierInit(&shared.free, 1);
    BarrierInit(&shared.wanted, 1);
    BarrierInit(&shared.counted, kConsumers);
    BarrierInit(&shared.landed, 1);
    BarrierInit(&shared.left.complete, 1);
    for (int i = 0; i < 2; ++i) {
      BarrierInit(&shared.found[i], 1);
      BarrierInit(&shared.asked[i], 1);
    }
  }
  BarrierInitFence();
  __syncthreads();
  WaitForPredecessors();
  if (threadIdx.x / 32 == kFetchingWarp) {
    Fetch<kDim, kPaired>(plan, shared);
  } else if (threadIdx.x / 32 == kMergingWarp) {
    MergingWarp<kDim, kPaired>(plan, workspace, *counters, shared).Run();
  } else {
    CountItems(plan, shared);
    Consume<kDim, kPaired>(plan, workspace, *counters, shared);
  }
}

Workspace WorkspaceOf(const DeviceQueue& queue, const Plan& plan) {
  const int32_t lane_heads =
      plan.paired() ? DiffKvPlanes<true>::kHeads : DiffKvPlanes<false>::kHeads;
  const int32_t lanes = PartialLanes(std::min(plan.group, kDiffKvColumns), lane_heads);
  return {.floats = queue.workspace().as<float>(),
          .slot_heads = plan.heads(),
          .heads = static_cast<int32_t>(plan.params.heads),
          .lanes = lanes,
          .partial_floats = PartialFloats(lanes, lane_heads, plan.params.pages.geometry.head_dim)};
}

template <int kDim, bool kPaired>
absl::Status Launch(const DeviceQueue& queue, Plan plan) {
  const DiffKvAttentionParams& params = plan.params;
  const Workspace workspace = WorkspaceOf(queue, plan);
  const size_t bytes = Shared<kDim, kPaired>::Bytes(queue.device().has_hopper_code);
  const auto kernel = AttentionKernel<kDim, kPaired>;
  const cudaError_t allowed = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (allowed != cudaSuccess) {
    return ToStatus(allowed, "diffkv_attention: shared memory");
  }
  const int32_t blocks = queue.multiprocessors() * RingBlocks(queue.device().has_hopper_code);
  plan.dealt = Dealt::Of(blocks, static_cast<int32_t>(params.num_rows) * plan.heads());
  cudaError_t launched = LaunchEarly(queue,
                                     kernel,
                                     static_cast<uint32_t>(blocks),
                                     kThreads,
                                     bytes,
                                     plan,
                                     workspace,
                                     reinterpret_cast<Counters*>(queue.counters()));
  if (launched == cudaSuccess && params.scored) launched = LaunchScores(queue, plan, workspace);
  return ToStatus(launched, "diffkv_attention");
}

absl::Status CheckShapes(const DiffKvAttentionParams& params) {
  ParamChecker check("diffkv_attention");
  const DiffKvGeometry& geometry = params.pages.geometry;
  CheckDiffKvPages(params.pages, check);
  check.NotNull("rows", params.rows)
      .NotNull("q", params.q)
      .Require(FitsVectors({params.q}, {params.q_stride}),
               "q_stride",
               params.q_stride,
               "q must be aligned to 16 bytes")
      .NotNull("out", params.out)
      .NotNegative("sliding_window", params.sliding_window);
  if (params.scored) {
    check.NotNull("scratch", params.scratch)
        .Require(FitsVectors({params.scratch}, {}),
                 "scratch",
                 static_cast<int64_t>(reinterpret_cast<intptr_t>(params.scratch)),
                 "must be aligned to 16 bytes");
  }
  if (check.ok() && !(params.scale > 0.0f)) {
    return absl::InvalidArgumentError(
        absl::StrCat("diffkv_attention: scale is ", params.scale, " but must be positive"));
  }
  if (check.ok()) {
    check
        .Require(params.heads > 0 && params.heads % geometry.kv_heads == 0,
                 "heads",
                 params.heads,
                 "must be a multiple of kv_heads")
        .Require(params.heads <= (DeviceQueue::kCounters - kOwnCounters) / kMaxRows,
                 "heads",
                 params.heads,
                 "is more than the queue has counters for");
  }
  return check.status();
}

// Rows that one launch has workspace for; at most kMaxRows. kResourceExhausted without room for
// one.
absl::StatusOr<int64_t> RowsOfLaunch(const DeviceQueue& queue, const Plan& plan) {
  const auto row_bytes =
      static_cast<size_t>(WorkspaceOf(queue, plan).Floats(1) * int64_t{sizeof(float)});
  const size_t rows = std::min<size_t>(queue.workspace().size() / row_bytes, kMaxRows);
  if (rows == 0) {
    return absl::ResourceExhaustedError(absl::StrCat("diffkv_attention: the workspace has ",
                                                     queue.workspace().size(),
                                                     " bytes but a row needs ",
                                                     row_bytes));
  }
  return static_cast<int64_t>(rows);
}

absl::Status LaunchRows(const DeviceQueue& queue, const Plan& plan) {
  const bool paired = plan.paired();
  if (plan.params.pages.geometry.head_dim == 128) {
    return paired ? Launch<128, true>(queue, plan) : Launch<128, false>(queue, plan);
  }
  return paired ? Launch<64, true>(queue, plan) : Launch<64, false>(queue, plan);
}

}  // namespace
}  // namespace diffkv

absl::Status DiffKvAttention(const ExecContext& context, const DiffKvAttentionParams& params) {
  if (params.num_rows == 0) {
    return absl::OkStatus();
  }
  const DeviceQueue& queue = *context.queue;
  if (absl::Status status = diffkv::CheckShapes(params); !status.ok()) {
    return status;
  }
  diffkv::Plan plan = diffkv::MakePlan(params);
  const absl::StatusOr<int64_t> rows = diffkv::RowsOfLaunch(queue, plan);
  if (!rows.ok()) {
    return rows.status();
  }
  for (int64_t begin = 0; begin < params.num_rows; begin += *rows) {
    plan.params.rows = params.rows + begin;
    plan.params.num_rows = std::min(*rows, params.num_rows - begin);
    if (absl::Status status = diffkv::LaunchRows(queue, plan); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::cuda
