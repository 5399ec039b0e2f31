// Paged attention, made for decode rows: one query row or a few of a sequence, over bf16 and f8e4m3
// pages. Over bf16 pages some dozens of rows of a sequence are left to FewRowsAttention, more to
// PrefillAttention where it can take them.
//
// The kernel is bound by reading keys and values once. A fixed number of blocks, two on each
// multiprocessor of Hopper, takes items (paged_attention_work.cuh) from a counter. In a block one
// warp loads: it walks over the items and starts bulk copies of 16 tokens of one KV head each (4
// KiB of keys at head_dim 128) into a ring of stages of 64 tokens, as far ahead as the ring has
// room, also past the end of an item. Scales of f8e4m3 tokens are too few bytes for bulk copies:
// its lanes copy them. Four warps compute: each takes 16 tokens of every stage for all query heads
// of the KV head (paged_attention_tile.cuh) and waits for the others only at the end of a split,
// where they merge (paged_attention_merge.cuh). One warp counts the splits that have ended
// (paged_attention_ends.cuh).
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/allow_shared.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/check_pages.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/paged_attention_ends.cuh"
#include "kernels/cuda/paged_attention_few_rows.h"
#include "kernels/cuda/paged_attention_merge.cuh"
#include "kernels/cuda/paged_attention_tile.cuh"
#include "kernels/cuda/paged_attention_work.cuh"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bulk_copy.cuh"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/early_launch.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/params.h"

namespace baton::kernels::cuda {
namespace {

using paged::Call;
using paged::Item;

// Behind the computing warps one loads and one counts.
constexpr int32_t kThreads = paged::kConsumers + 2 * kWarpLanes;
// Items that the loading warp may be ahead of the computing ones.
constexpr int32_t kItems = 4;
// Stages of an item that are still to be loaded when the next item is taken: earlier, and a block
// would sit on two items while others have none left; later, and it would wait for the number.
constexpr int32_t kStagesAhead = 2;
constexpr int64_t kMaxGroup = 2 * paged::kColumns;

// Shared memory of a block.
template <int kHeadDim, int kColumnTiles, DType kDType, bool kHopper = kHopperCode>
struct Shared {
  using Area = paged::MergeArea<kHeadDim, kColumnTiles>;
  using Layout = paged::StageLayout<kHeadDim, kDType>;
  static constexpr int32_t kStageBytes = Layout::kBytes;
  static constexpr int32_t kStages =
      static_cast<int32_t>((RingBlockBytes(kHopper) - sizeof(Area) - 1024) / kStageBytes);

  alignas(128) std::byte ring[kStages][kStageBytes];
  Area area;
  paged::SplitEnds ends;
  Item items[kItems];
  // A stage is full when its bytes have come, and scales, of which every lane of the loading warp
  // brings some; empty when every computing warp has let it go.
  uint64_t stage_full[kStages];
  uint64_t stage_empty[kStages];
  uint64_t item_full[kItems];
  uint64_t item_empty[kItems];
};

template <typename SharedBlock>
__device__ void InitBarriers(SharedBlock& shared) {
  if (threadIdx.x == 0) {
    const uint32_t full_arrivals = SharedBlock::Layout::kHasScales ? 1 + kWarpLanes : 1;
    for (int i = 0; i < SharedBlock::kStages; ++i) {
      BarrierInit(&shared.stage_full[i], full_arrivals);
      BarrierInit(&shared.stage_empty[i], paged::kConsumerWarps);
    }
    for (int i = 0; i < kItems; ++i) {
      BarrierInit(&shared.item_full[i], 1);
      BarrierInit(&shared.item_empty[i], paged::kConsumerWarps);
    }
    shared.ends.Init();
    BarrierInitFence();
  }
  __syncthreads();
}

// Starts the copies of the scales of a stage from token `position` on, those of two tokens for each
// lane. Pages' ids are read when it is made, before the wait for the stage.
template <int kHeadDim>
class ScaleLoader {
 public:
  __device__ ScaleLoader(const DensePages& pages, const Item& item, int32_t position)
      : pages_(pages), item_(item) {
#pragma unroll
    for (int32_t i = 0; i < kTokens; ++i) {
      const int32_t token = position + Token(i);
      seen_[i] = token >= item.first && token < item.end;
      const int32_t page = token / pages.layout.page_tokens;
      slots_[i] = token - page * pages.layout.page_tokens;
      ids_[i] = seen_[i] ? __ldg(item.page_table + page) : 0;
    }
  }

  __device__ void Load(std::byte* stage, uint64_t* full) const {
    using Layout = paged::StageLayout<kHeadDim, DType::kF8E4M3>;
    auto* scales = reinterpret_cast<float*>(stage + Layout::kScales);
#pragma unroll
    for (int32_t i = 0; i < kTokens; ++i) {
      if (!seen_[i]) continue;
      const std::byte* page = pages_.base + ids_[i] * pages_.layout.stride_bytes();
      CopyAsync4(scales + Token(i),
                 page + pages_.layout.key_scale_offset(item_.kv_head, slots_[i]));
      CopyAsync4(scales + paged::kStageTokens + Token(i),
                 page + pages_.layout.value_scale_offset(item_.kv_head, slots_[i]));
    }
    BarrierArriveOnCopies(full);
  }

 private:
  static constexpr int32_t kTokens = paged::kStageTokens / kWarpLanes;

  __device__ static int32_t Token(int32_t i) {
    return static_cast<int32_t>(threadIdx.x % kWarpLanes) + i * kWarpLanes;
  }

  const DensePages& pages_;
  const Item& item_;
  bool seen_[kTokens];
  int32_t slots_[kTokens];
  int32_t ids_[kTokens];
};

// Nothing of bf16 tokens.
struct NoScales {
  __device__ NoScales(const DensePages&, const Item&, int32_t) {}
  __device__ void Load(std::byte*, uint64_t*) const {}
};

// Starts the copies of a stage from token `position` on, of the keys that the item sees: lanes 0 to
// 3 copy a chunk of keys each, lanes 4 to 7 of values. The page's id is read before the wait for
// the stage, which takes longer.
template <int kHeadDim, DType kDType>
__device__ void LoadStage(const DensePages& pages,
                          const Item& item,
                          int32_t position,
                          uint32_t empty_parity,
                          std::byte* stage,
                          uint64_t* full,
                          uint64_t* empty,
                          uint64_t policy) {
  using Layout = paged::StageLayout<kHeadDim, kDType>;
  using Scales = std::conditional_t<Layout::kHasScales, ScaleLoader<kHeadDim>, NoScales>;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  const int32_t chunk = lane % paged::kChunks;
  const bool values = lane >= paged::kChunks;
  const int32_t chunk_begin = position + chunk * paged::kChunkTokens;
  int32_t token = max(chunk_begin, item.first);
  const int32_t end =
      lane < 2 * paged::kChunks ? min(chunk_begin + paged::kChunkTokens, item.end) : token;
  int32_t page = token / pages.layout.page_tokens;
  int32_t slot = token - page * pages.layout.page_tokens;
  int32_t id = token < end ? __ldg(item.page_table + page) : 0;
  const Scales scales(pages, item, position);
  BarrierWait(empty, empty_parity);
  if (lane == 0) {
    const int32_t tokens =
        min(position + paged::kStageTokens, item.end) - max(position, item.first);
    BarrierArriveAndExpect(full, static_cast<uint32_t>(2 * tokens * Layout::kRowBytes));
  }
  __syncwarp();
  std::byte* target = stage + (values ? Layout::kValues : 0) + chunk * Layout::kChunkBytes;
  while (token < end) {
    const int32_t run = min(end - token, pages.layout.page_tokens - slot);
    const std::byte* source = pages.base + id * pages.layout.stride_bytes() +
                              (values ? pages.layout.value_offset(item.kv_head, slot)
                                      : pages.layout.key_offset(item.kv_head, slot));
    BulkCopy(target + (token - chunk_begin) * Layout::kRowBytes,
             source,
             static_cast<uint32_t>(run * Layout::kRowBytes),
             full,
             policy);
    token += run;
    slot = 0;
    id = token < end ? __ldg(item.page_table + ++page) : 0;
  }
  scales.Load(stage, full);
  __syncwarp();
  WarpBulkCopiesStarted(full);
}

// The loading warp has taken its last item. The last block to say so puts the counters back.
__device__ void Retire(uint32_t* counters) {
  if (threadIdx.x % kWarpLanes != 0) return;
  __threadfence();
  if (atomicAdd(counters + paged::kRetiredCounter, 1u) + 1 == gridDim.x) {
    counters[paged::kNextItemCounter] = 0;
    counters[paged::kRetiredCounter] = 0;
  }
}

// What the loading warp does. A block's first item is its own number; then it takes the next that
// nobody has.
template <int kHeadDim, int kColumnTiles, DType kDType>
__device__ void LoadItems(const Call& call, Shared<kHeadDim, kColumnTiles, kDType>& shared) {
  const bool leader = threadIdx.x % kWarpLanes == 0;
  const uint64_t policy = ReadOncePolicy();
  paged::RowCursor cursor(call);
  RingPlace<kItems> queue;
  RingPlace<Shared<kHeadDim, kColumnTiles, kDType>::kStages> ring;
  auto number = static_cast<int32_t>(blockIdx.x);
  for (;; queue.Next()) {
    BarrierWait(&shared.item_empty[queue.place], queue.parity ^ 1);
    const bool found = cursor.Find(number, shared.items[queue.place]);
    const Item item = shared.items[queue.place];
    __syncwarp();
    if (leader) BarrierArrive(&shared.item_full[queue.place]);
    if (!found) break;
    int32_t next = 0;
    const auto take = [&] {
      if (leader) {
        next = static_cast<int32_t>(gridDim.x +
                                    atomicAdd(call.counters + paged::kNextItemCounter, 1u));
      }
    };
    bool taken = false;
    for (int32_t position = item.begin; position < item.end; position += paged::kStageTokens) {
      if (!taken && position + kStagesAhead * paged::kStageTokens >= item.end) {
        take();
        taken = true;
      }
      LoadStage<kHeadDim, kDType>(call.params.pages,
                                  item,
                                  position,
                                  ring.parity ^ 1,
                                  shared.ring[ring.place],
                                  &shared.stage_full[ring.place],
                                  &shared.stage_empty[ring.place],
                                  policy);
      ring.Next();
    }
    if (!taken) take();
    number = __shfl_sync(kAllLanes, next, 0);
  }
  Retire(call.counters);
}

// One computing warp of a block.
template <int kHeadDim, int kColumnTiles, DType kDType>
class Consumer {
 public:
  __device__ Consumer(const Call& call, Shared<kHeadDim, kColumnTiles, kDType>& shared)
      : call_(call), shared_(shared), warp_(static_cast<int32_t>(threadIdx.x / kWarpLanes)) {}

  __device__ void Run() {
    for (;; queue_.Next()) {
      BarrierWait(&shared_.item_full[queue_.place], queue_.parity);
      const Item item = shared_.items[queue_.place];
      LetGo(&shared_.item_empty[queue_.place]);
      if (item.row < 0) break;
      Attend(item);
    }
    EndItems();
  }

 private:
  using Running = paged::Running<kHeadDim, kColumnTiles>;
  using Queries = paged::Queries<kHeadDim, kColumnTiles>;

  // The warp reads this place no more.
  __device__ void LetGo(uint64_t* empty) {
    __syncwarp();
    if (threadIdx.x % kWarpLanes == 0) BarrierArrive(empty);
  }

  __device__ void Attend(const Item& item) {
    const PagedAttentionParams& params = call_.params;
    Queries queries;
    queries.Load(static_cast<const uint16_t*>(params.q) + item.row * params.q_stride +
                     item.kv_head * call_.group * kHeadDim,
                 call_.group);
    Running running;
    paged::FoldedSplits<kColumnTiles> folded;
    int32_t begin = item.begin;
    do {
      const int32_t end = min(begin + item.split_tokens, item.end);
      AttendSplit(item, begin, end, queries, running);
      paged::MergeWarps(warp_, shared_.area, running);
      if (warp_ == 0 && item.slot < 0 && item.splits > 1) {
        paged::FoldSplit(begin == item.begin, shared_.area, folded, running);
      }
      begin = end;
    } while (begin < item.end);
    if (item.slot >= 0) {
      EndSplit(item, running);
    } else if (warp_ == 0) {
      paged::FinishItem(call_, item, running);
    }
  }

  // The warp's tiles of the stages from `begin` to `end`.
  __device__ void AttendSplit(
      const Item& item, int32_t begin, int32_t end, const Queries& queries, Running& running) {
    running.Clear();
    for (int32_t position = begin; position < end; position += paged::kStageTokens) {
      BarrierWait(&shared_.stage_full[ring_.place], ring_.parity);
      paged::FoldTile<kDType>(shared_.ring[ring_.place],
                              warp_,
                              {.position = position, .first = item.first, .end = item.end},
                              call_.score_scale,
                              queries,
                              running);
      LetGo(&shared_.stage_empty[ring_.place]);
      ring_.Next();
    }
  }

  // Ends a split of a row whose splits are items.
  __device__ void EndSplit(const Item& item, const Running& running) {
    if (warp_ == 0) {
      paged::WritePartial(call_, item, running);
      __syncwarp();
    }
    if (threadIdx.x == 0) {
      paged::HandIn({item.row, item.kv_head, item.splits, item.slot}, handed_in_, shared_.ends);
    }
    MergeComplete();
  }

  // Behind the last item: merges what its own and the splits before it have completed.
  __device__ void EndItems() {
    if (threadIdx.x == 0) paged::HandIn({.row = -1}, handed_in_, shared_.ends);
    BarrierWait(&shared_.ends.counted, 0);
    MergeComplete();
  }

  // Merges the heads that are known to be complete. All computing warps.
  __device__ void MergeComplete() {
    paged::SplitEnds& ends = shared_.ends;
    if (threadIdx.x == 0) {
      ends.to_merge = ends.completed;
      __threadfence_block();
    }
    paged::SyncConsumers();
    const uint32_t end = ends.to_merge;
    for (; merged_ < end; ++merged_) {
      paged::MergeSplits<kHeadDim>(call_, ends.complete[merged_ % paged::SplitEnds::kComplete]);
    }
    paged::SyncConsumers();
  }

  const Call& call_;
  Shared<kHeadDim, kColumnTiles, kDType>& shared_;
  int32_t warp_;
  RingPlace<kItems> queue_;
  RingPlace<Shared<kHeadDim, kColumnTiles, kDType>::kStages> ring_;
  RingPlace<paged::SplitEnds::kHandedIn> handed_in_;  // of thread 0
  uint32_t merged_ = 0;
};

template <int kHeadDim, int kColumnTiles, DType kDType>
__global__ void __launch_bounds__(kThreads, RingBlocks(kHopperCode))
    PagedAttentionKernel(const __grid_constant__ Call call) {
  LaunchDependents();
  using SharedBlock = Shared<kHeadDim, kColumnTiles, kDType>;
  static_assert(sizeof(SharedBlock) <= RingBlockBytes(kHopperCode) && SharedBlock::kStages >= 2,
                "a block has too little shared memory");
  extern __shared__ __align__(128) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedBlock*>(shared_bytes);
  InitBarriers(shared);
  WaitForPredecessors();
  if (threadIdx.x >= paged::kConsumers + kWarpLanes) {
    paged::CountSplits(call.counters, shared.ends);
  } else if (threadIdx.x >= paged::kConsumers) {
    LoadItems(call, shared);
  } else {
    Consumer<kHeadDim, kColumnTiles, kDType>(call, shared).Run();
  }
}

template <int kHeadDim, int kColumnTiles, DType kDType>
absl::Status Launch(const DeviceQueue& queue, const Call& call) {
  const bool hopper = queue.device().has_hopper_code;
  const size_t bytes = hopper ? sizeof(Shared<kHeadDim, kColumnTiles, kDType, true>)
                              : sizeof(Shared<kHeadDim, kColumnTiles, kDType, false>);
  const auto kernel = PagedAttentionKernel<kHeadDim, kColumnTiles, kDType>;
  cudaError_t error = AllowShared(kernel, bytes);
  if (error == cudaSuccess) {
    const auto blocks = static_cast<unsigned>(queue.multiprocessors() * RingBlocks(hopper));
    error = LaunchEarly(queue, kernel, blocks, kThreads, bytes, call);
  }
  return ToStatus(error, "paged_attention");
}

template <DType kDType>
absl::Status LaunchFor(const DeviceQueue& queue, const Call& call) {
  const bool one_tile = call.group <= paged::kColumns;
  if (call.params.pages.layout.head_dim == 64) {
    return one_tile ? Launch<64, 1, kDType>(queue, call) : Launch<64, 2, kDType>(queue, call);
  }
  return one_tile ? Launch<128, 1, kDType>(queue, call) : Launch<128, 2, kDType>(queue, call);
}

// The op's rules as far as the host sees; `params` has sequences.
absl::Status Check(const PagedAttentionParams& params) {
  ParamChecker check("paged_attention");
  CheckPages(params.pages, check);
  if (!check.ok()) return check.status();
  const int64_t width = params.heads * params.pages.layout.head_dim;
  const bool aligned = FitsVectors({params.q, params.out}, {params.q_stride, params.out_stride});
  check.NotNull("sequences", params.sequences)
      .Positive("heads", params.heads)
      .Require(params.heads % params.pages.layout.kv_heads == 0,
               "heads",
               params.heads,
               "must be a multiple of pages.layout.kv_heads")
      .NotNegative("sliding_window", params.sliding_window)
      .NotNull("q", params.q)
      .NotNull("out", params.out)
      .NotNull("positions", params.positions)
      .AtLeast("q_stride", params.q_stride, width)
      .AtLeast("out_stride", params.out_stride, width)
      .Require(aligned, "q_stride", params.q_stride, "q and out must be aligned to 16 bytes");
  if (params.merge) check.NotNull("lse", params.lse);
  return check.ok()
             ? CheckMatrixUnits(
                   "paged_attention", params.pages.layout, params.heads, kMaxGroup, /*fp8=*/true)
             : check.status();
}

// As many partial results as the workspace and the counters have room for.
int32_t Slots(const DeviceQueue& queue, int64_t group, int64_t head_dim) {
  const auto bytes = static_cast<int64_t>(sizeof(float)) * paged::PartialFloats(group, head_dim);
  return static_cast<int32_t>(
      std::min<int64_t>(static_cast<int64_t>(queue.workspace().size()) / bytes,
                        DeviceQueue::kCounters - paged::kGroupCounter));
}

}  // namespace

absl::Status PagedAttention(const ExecContext& context, const PagedAttentionParams& params) {
  ParamChecker check("paged_attention");
  check.NotNegative("num_sequences", params.num_sequences);
  if (!check.ok() || params.num_sequences == 0) {
    return check.status();
  }
  if (absl::Status status = Check(params); !status.ok()) {
    return status;
  }
  const DensePageLayout& layout = params.pages.layout;
  const bool has_scales = layout.has_scales();
  if (!has_scales && HasFewRows(params)) {
    absl::Status status = FewRowsAttention(*context.queue, params);
    if (!absl::IsUnimplemented(status)) return status;
  }
  if (!has_scales && IsPrefill(params)) {
    absl::Status status = PrefillAttention(*context.queue, params);
    if (!absl::IsUnimplemented(status)) return status;
  }
  const DeviceQueue& queue = *context.queue;
  const int64_t group = params.heads / layout.kv_heads;
  const int32_t slots = Slots(queue, group, layout.head_dim);
  if (slots < paged::kMaxSplits * layout.kv_heads) {
    return absl::ResourceExhaustedError(
        absl::StrCat("paged_attention: a workspace of ",
                     queue.workspace().size(),
                     " bytes does not hold the partial results of one row"));
  }
  const Call call = {.params = params,
                     .group = static_cast<int32_t>(group),
                     .score_scale = params.scale * kLog2E,
                     .partials = queue.workspace().as<float>(),
                     .slots = slots,
                     .counters = queue.counters()};
  return has_scales ? LaunchFor<DType::kF8E4M3>(queue, call) : LaunchFor<DType::kBF16>(queue, call);
}

}  // namespace baton::kernels::cuda
