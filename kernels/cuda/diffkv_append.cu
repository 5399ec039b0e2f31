#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/diffkv_checks.h"
#include "kernels/cuda/diffkv_pages.cuh"
#include "kernels/cuda/diffkv_token.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/quantize.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// Blocks for each multiprocessor that the sweep is split into, where there are tokens for them.
constexpr int32_t kBlocksPerProcessor = 4;
// Splits of a head however many heads there are: of many rows few sweep in a step, and those that
// do are waited for.
constexpr int64_t kLeastSplits = 8;
// A thread sweeps runs of four slots; a split has two for each thread at least.
constexpr int32_t kRun = 4;
constexpr int32_t kLeastRuns = 2 * kThreads;
// Unobserved ranges that a block keeps near.
constexpr int32_t kNearRanges = 32;

constexpr uint64_t kNoVictim = ~uint64_t{0};

// What a sweep finds, in words whose order is that of the choice: the least victim is the lowest
// mean, then the lowest slot; the largest candidate (0: none) the last slot. Zeros of both signs
// are one mean.
struct Found {
  uint64_t victims[kDiffKvTiers] = {kNoVictim, kNoVictim};
  uint64_t candidate = 0;

  __device__ void Merge(const Found& other) {
    for (int tier = 0; tier < kDiffKvTiers; ++tier) {
      victims[tier] = min(victims[tier], other.victims[tier]);
    }
    candidate = max(candidate, other.candidate);
  }
};

__device__ uint64_t VictimWord(float mean, int32_t slot) {
  const uint32_t bits = __float_as_uint(mean + 0.0f);
  const uint32_t ordered = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  return uint64_t{ordered} << 32 | static_cast<uint32_t>(slot);
}
__device__ DiffKvVictim VictimOf(uint64_t word) {
  if (word == kNoVictim) return {};
  const auto ordered = static_cast<uint32_t>(word >> 32);
  const uint32_t bits = ordered ^ ((ordered >> 31) != 0 ? 0x80000000u : 0xffffffffu);
  return {.mean = __uint_as_float(bits), .slot = static_cast<int32_t>(word & 0xffffffffu)};
}
__device__ uint64_t CandidateWord(float mean, int32_t slot) {
  return uint64_t{static_cast<uint32_t>(slot) + 1} << 32 | __float_as_uint(mean);
}
__device__ DiffKvVictim CandidateOf(uint64_t word) {
  if (word == 0) return {};
  return {.mean = __uint_as_float(static_cast<uint32_t>(word)),
          .slot = static_cast<int32_t>((word >> 32) - 1)};
}

struct AppendArgs {
  const uint4* k = nullptr;  // eight elements each
  const uint4* v = nullptr;
  int64_t stride = 0;  // in eights
  const DiffKvAppendRow* rows = nullptr;
  DiffKvPages pages;
  Found* found = nullptr;        // [rows][kv_heads][splits]
  uint32_t* counters = nullptr;  // [rows]
  int32_t splits = 0;

  __device__ int32_t kv_heads() const { return pages.geometry.kv_heads; }
  __device__ Found* FoundOf(uint32_t row, int32_t head) const {
    return found + (int64_t{row} * kv_heads() + head) * splits;
  }
};

struct AppendShared {
  UnobservedRange ranges[kNearRanges];
  Found found[kWarps];
  DiffKvCodes codes[kWarps];
  bool last;
};

__device__ int32_t RunsOf(int32_t tokens) { return (tokens + kRun - 1) / kRun; }

// Splits of a head that have something to do.
__device__ int32_t ActiveSplits(const AppendArgs& args, int32_t runs) {
  const int32_t wanted = (runs + kLeastRuns - 1) / kLeastRuns;
  return max(1, min(wanted, args.splits));
}

// Lets the stored token compete, if it may.
__device__ void Consider(const DiffKvPolicy& policy,
                         int32_t row_position,
                         int32_t tier,
                         int32_t slot,
                         float score,
                         int32_t position,
                         uint64_t& victim,
                         uint64_t& candidate) {
  const int32_t age = DiffKvAge(policy, position, row_position);
  if (!DiffKvCompetes(policy, position, row_position, age)) return;
  const float mean = __fdiv_rn(score, static_cast<float>(age));
  if (mean < std::numeric_limits<float>::infinity()) {
    victim = min(victim, VictimWord(mean, slot));
  }
  if (tier == kDiffKvHigh && position == row_position - policy.window) {
    candidate = max(candidate, CandidateWord(mean, slot));
  }
}

// Sweeps the runs [begin, end) of a tier of one head: 8 bytes of a page for each token.
__device__ void SweepRuns(const AppendArgs& args,
                          const DiffKvAppendRow& row,
                          const DiffKvPolicy& policy,
                          int32_t head,
                          int32_t tier,
                          int32_t begin,
                          int32_t end,
                          Found& found) {
  const DiffKvPageLayout layout = args.pages.geometry.layout(tier);
  const std::byte* scores = args.pages.base + layout.scores();
  const size_t to_positions = layout.positions() - layout.scores();
  const int32_t page_runs = layout.page_tokens() / kRun;
  const int32_t count = DiffKvCount(row.layer, head, tier);
  const int32_t row_position = row.position;
  const int32_t* ids = &DiffKvPageId(row.layer, head, tier, 0);
  const int32_t step = tier == kDiffKvHigh ? 1 : -1;
  uint64_t victim = kNoVictim;
  int32_t run = begin + static_cast<int32_t>(threadIdx.x);
  int32_t page = run / page_runs;
  int32_t in_page = run % page_runs;
#pragma unroll 2
  for (; run < end; run += kThreads) {
    const std::byte* at = scores + static_cast<size_t>(ids[page * step]) * layout.page_bytes();
    const float4 four = reinterpret_cast<const float4*>(at)[in_page];
    const int4 where = reinterpret_cast<const int4*>(at + to_positions)[in_page];
    const float score[kRun] = {four.x, four.y, four.z, four.w};
    const int32_t position[kRun] = {where.x, where.y, where.z, where.w};
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const int32_t slot = run * kRun + i;
      if (slot < count) {
        Consider(policy, row_position, tier, slot, score[i], position[i], victim, found.candidate);
      }
    }
    page += kThreads / page_runs;
    in_page += kThreads % page_runs;
    page += in_page >= page_runs ? 1 : 0;
    in_page -= in_page >= page_runs ? page_runs : 0;
  }
  (tier == kDiffKvHigh ? found.victims[kDiffKvHigh] : found.victims[kDiffKvLow]) = victim;
}

__device__ Found WarpMerge(Found found) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    Found other;
    for (int tier = 0; tier < kDiffKvTiers; ++tier) {
      other.victims[tier] = __shfl_xor_sync(kAllLanes, found.victims[tier], step);
    }
    other.candidate = __shfl_xor_sync(kAllLanes, found.candidate, step);
    found.Merge(other);
  }
  return found;
}

// The row's policy with its ranges in shared memory, if they have room there.
__device__ DiffKvPolicy NearPolicy(const DiffKvAppendRow& row, UnobservedRange* ranges) {
  DiffKvPolicy policy = row.policy;
  if (policy.unobserved_count <= kNearRanges) {
    const auto i = static_cast<int32_t>(threadIdx.x);
    if (i < policy.unobserved_count) ranges[i] = policy.unobserved[i];
    policy.unobserved = ranges;
  }
  __syncthreads();
  return policy;
}

// One split's part of a head's sweep; thread 0 writes what it found.
__device__ void SweepSplit(const AppendArgs& args,
                           const DiffKvAppendRow& row,
                           int32_t head,
                           int32_t split,
                           AppendShared& shared) {
  const int32_t high_runs = RunsOf(DiffKvCount(row.layer, head, kDiffKvHigh));
  const int32_t runs = high_runs + RunsOf(DiffKvCount(row.layer, head, kDiffKvLow));
  const int32_t active = ActiveSplits(args, runs);
  if (split >= active) return;
  const int32_t of_split = (runs + active - 1) / active;
  const int32_t begin = split * of_split;
  const int32_t end = min(begin + of_split, runs);
  const DiffKvPolicy policy = NearPolicy(row, shared.ranges);
  Found found;
#pragma unroll 1
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    const int32_t first = tier == kDiffKvHigh ? begin : max(begin - high_runs, 0);
    const int32_t last = tier == kDiffKvHigh ? min(end, high_runs) : end - high_runs;
    SweepRuns(args, row, policy, head, tier, first, last, found);
  }
  found = WarpMerge(found);
  if (threadIdx.x % 32 == 0) shared.found[threadIdx.x / 32] = found;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kWarps; ++warp) found.Merge(shared.found[warp]);
    args.FoundOf(blockIdx.z, head)[split] = found;
  }
}

// What a warp decides for one head, from what its splits found.
__device__ DiffKvAction DecideHead(const AppendArgs& args,
                                   const DiffKvAppendRow& row,
                                   int32_t head) {
  DiffKvHeadState state;
  for (int tier = 0; tier < kDiffKvTiers; ++tier) {
    state.counts[tier] = DiffKvCount(row.layer, head, tier);
  }
  if (!row.sweep) return AppendToDiffKv(state);
  const int32_t runs = RunsOf(state.counts[kDiffKvHigh]) + RunsOf(state.counts[kDiffKvLow]);
  const int32_t active = ActiveSplits(args, runs);
  const Found* of_head = args.FoundOf(blockIdx.z, head);
  Found found;
  for (int32_t split = static_cast<int32_t>(threadIdx.x % 32); split < active; split += 32) {
    Found other;  // from L2: other blocks wrote it
    for (int tier = 0; tier < kDiffKvTiers; ++tier) {
      other.victims[tier] = __ldcg(&of_head[split].victims[tier]);
    }
    other.candidate = __ldcg(&of_head[split].candidate);
    found.Merge(other);
  }
  found = WarpMerge(found);
  for (int tier = 0; tier < kDiffKvTiers; ++tier) {
    state.victims[tier] = VictimOf(found.victims[tier]);
  }
  state.candidate = CandidateOf(found.candidate);
  return DecideDiffKv(row.policy, row.position, state);
}

// True when the action adds a token to a tier whose last page is full.
__device__ bool TakesPage(const DiffKvGeometry& geometry,
                          const DiffKvAppendRow& row,
                          int32_t head,
                          int32_t tier) {
  const DiffKvAction& action = row.actions[head];
  const bool grows = tier == kDiffKvHigh ? action.appended : action.low_appended;
  return grows && DiffKvCount(row.layer, head, tier) % DiffKvPageTokens(geometry.tiers[tier]) == 0;
}

// Which of the row's new pages are the head's; plan.fits also says that the lease has them all.
__device__ DiffKvPagePlan PlanRow(const AppendArgs& args,
                                  const DiffKvAppendRow& row,
                                  int32_t head) {
  const DiffKvGeometry& geometry = args.pages.geometry;
  DiffKvPagePlan plan = PlanPages(geometry.kv_heads, head, row.layer.columns, [&](int32_t other) {
    DiffKvHeadNeed need;
    for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
      const int32_t more = TakesPage(geometry, row, other, tier) ? 1 : 0;
      need.pages += DevicePagesFor(geometry, row.layer.token_counts, other, tier) + more;
      need.taken += more;
    }
    return need;
  });
  plan.fits = plan.fits && plan.taken <= row.lease->count - row.lease->used;
  return plan;
}

// The page of a slot, by one warp: the head's own, or the lease's page `*next`, zeroed, when the
// action adds one to the tier.
__device__ std::byte* PageFor(const AppendArgs& args,
                              const DiffKvAppendRow& row,
                              int32_t head,
                              int32_t tier,
                              int32_t slot,
                              int32_t* next) {
  const DiffKvGeometry& geometry = args.pages.geometry;
  int32_t* entry =
      &DiffKvPageId(row.layer, head, tier, slot / DiffKvPageTokens(geometry.tiers[tier]));
  if (!TakesPage(geometry, row, head, tier)) return DevicePage(args.pages, *entry);
  const int32_t id = row.lease->ids[(*next)++];
  std::byte* page = DevicePage(args.pages, id);
  const uint32_t lane = threadIdx.x % 32;
  if (lane == 0) *entry = id;
  for (size_t at = lane * sizeof(uint4); at < geometry.page_bytes(); at += 32 * sizeof(uint4)) {
    *reinterpret_cast<uint4*>(page + at) = uint4{0, 0, 0, 0};
  }
  __syncwarp();
  return page;
}

// The codes of a slot; calls, for few take part.
template <int kDim>
__device__ __noinline__ void Pack(const DiffKvTier& tier,
                                  std::byte* page,
                                  int32_t slot,
                                  const DiffKvCodes& codes) {
  WithTier(tier, [&]<DiffKvTier kTier>() { PackToken<kDim, kTier>(page, slot, codes); });
}
template <int kDim>
__device__ __noinline__ void Unpack(const DiffKvTier& tier,
                                    std::byte* page,
                                    int32_t slot,
                                    DiffKvCodes& codes) {
  WithTier(tier, [&]<DiffKvTier kTier>() { UnpackToken<kDim, kTier>(page, slot, codes); });
}

// Moves a token to a slot of the low tier, by one warp: codes and scales by the demotion map.
template <int kDim>
__device__ void Demote(const DiffKvGeometry& geometry,
                       std::byte* high,
                       int32_t high_slot,
                       std::byte* low,
                       int32_t low_slot,
                       DiffKvCodes& codes) {
  const DiffKvTier& wide = geometry.tiers[kDiffKvHigh];
  const DiffKvTier& narrow = geometry.tiers[kDiffKvLow];
  Unpack<kDim>(wide, high, high_slot, codes);
  __syncwarp();
  const auto lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1  // executed once: instructions take longer to come than to execute
  for (int i = lane; i < kDim; i += 32) {
    codes.key[i] = DemoteCode(codes.key[i], wide.key_bits, narrow.key_bits);
    codes.value[i] = DemoteCode(codes.value[i], wide.value_bits, narrow.value_bits);
  }
  __syncwarp();
  Pack<kDim>(narrow, low, low_slot, codes);
  if (lane == 0) {
    const DiffKvSlotRefs from = SlotRefs(geometry.layout(kDiffKvHigh), high, high_slot);
    const DiffKvSlotRefs to = SlotRefs(geometry.layout(kDiffKvLow), low, low_slot);
    *to.key_range = DemoteRange(*from.key_range, wide.key_bits, narrow.key_bits);
    *to.value_range = DemoteRange(*from.value_range, wide.value_bits, narrow.value_bits);
    *to.score = *from.score;
    *to.position = *from.position;
  }
  __syncwarp();
}

// Quantizes the row's token into a slot of the high tier, by one warp: the key in its first
// kVectorLanes lanes, the value in the next.
template <int kDim>
__device__ void WriteToken(const AppendArgs& args,
                           const DiffKvAppendRow& row,
                           int32_t head,
                           std::byte* page,
                           int32_t slot,
                           DiffKvCodes& codes) {
  const DiffKvGeometry& geometry = args.pages.geometry;
  const DiffKvTier& tier = geometry.tiers[kDiffKvHigh];
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t in_vector = lane % kVectorLanes<kDim>;
  const int32_t vector = lane / kVectorLanes<kDim> % 2;  // further lanes repeat the others' work
  const int32_t bits = vector == 0 ? tier.key_bits : tier.value_bits;
  const uint4* source = (vector == 0 ? args.k : args.v) + row.row * args.stride;
  float x[8];
  WidenBf16(source[head * kVectorLanes<kDim> + in_vector], x);
  const QuantRange range = FitVector<kDim>(x, bits);
  const uint2 eight = QuantizeEight(x, range, bits);
  if (lane < 2 * kVectorLanes<kDim>) {
    uint8_t* target = vector == 0 ? codes.key : codes.value;
    *reinterpret_cast<uint2*>(target + 8 * in_vector) = eight;
  }
  const DiffKvSlotRefs refs = SlotRefs(geometry.layout(kDiffKvHigh), page, slot);
  if (lane == 0) {
    *refs.key_range = range;
    *refs.score = 0.0f;
    *refs.position = row.position;
  }
  if (lane == kVectorLanes<kDim>) *refs.value_range = range;
  __syncwarp();
  Pack<kDim>(tier, page, slot, codes);
  __syncwarp();
}

// Does what was decided for one head, but for its counts, which other warps still read.
template <int kDim>
__device__ void WriteHead(const AppendArgs& args,
                          const DiffKvAppendRow& row,
                          int32_t head,
                          const DiffKvPagePlan& plan,
                          DiffKvCodes& codes) {
  const DiffKvGeometry& geometry = args.pages.geometry;
  const DiffKvAction action = row.actions[head];
  int32_t next = row.lease->used + plan.before;
  std::byte* high = PageFor(args, row, head, kDiffKvHigh, action.high_slot, &next);
  const int32_t high_slot = action.high_slot % DiffKvPageTokens(geometry.tiers[kDiffKvHigh]);
  if (action.demoted_to >= 0) {
    std::byte* low = PageFor(args, row, head, kDiffKvLow, action.demoted_to, &next);
    const int32_t low_slot = action.demoted_to % DiffKvPageTokens(geometry.tiers[kDiffKvLow]);
    Demote<kDim>(geometry, high, high_slot, low, low_slot, codes);
  }
  WriteToken<kDim>(args, row, head, high, high_slot, codes);
}

// Counts of tokens and pages after the row's tokens are written. Where they do not fit, the row is
// as it was and its actions are none: a caller sees that high_slot is -1.
__device__ void CountRow(const AppendArgs& args,
                         const DiffKvAppendRow& row,
                         bool fits,
                         int32_t taken) {
  for (auto head = static_cast<int32_t>(threadIdx.x); head < args.kv_heads(); head += kThreads) {
    if (!fits) {
      row.actions[head] = DiffKvAction{};
      continue;
    }
    int32_t* counts = row.layer.token_counts + head * kDiffKvTiers;
    counts[kDiffKvHigh] += row.actions[head].appended ? 1 : 0;
    counts[kDiffKvLow] += row.actions[head].low_appended ? 1 : 0;
  }
  if (fits && threadIdx.x == 0) row.lease->used += taken;
}

// The rest of a row, by its last block, a head in each warp: decisions, then pages, which depend on
// the decisions of all heads, then tokens. A call, so that the sweep keeps its registers.
template <int kDim>
__device__ __noinline__ void FinishRow(const AppendArgs& args,
                                       const DiffKvAppendRow& row,
                                       AppendShared& shared) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  for (int32_t head = warp; head < args.kv_heads(); head += kWarps) {
    const DiffKvAction action = DecideHead(args, row, head);
    if (threadIdx.x % 32 == 0) row.actions[head] = action;
  }
  __syncthreads();
  DiffKvPagePlan plan = PlanRow(args, row, warp);
  for (int32_t head = warp; plan.fits && head < args.kv_heads(); head += kWarps) {
    if (head != warp) plan = PlanRow(args, row, head);
    WriteHead<kDim>(args, row, head, plan, shared.codes[warp]);
  }
  __syncthreads();
  CountRow(args, row, plan.fits, plan.taken);
}

// Whether the block is the one that finishes its row: of those that sweep, the last to end.
__device__ bool Finishes(const AppendArgs& args, const DiffKvAppendRow& row, AppendShared& shared) {
  if (!row.sweep) return blockIdx.x == 0 && blockIdx.y == 0;
  __syncthreads();  // the block has read its counts and pages
  if (threadIdx.x == 0) {
    shared.last = ArrivesLast(args.counters + blockIdx.z, gridDim.x * gridDim.y);
  }
  __syncthreads();
  return shared.last;
}

// Block (x, y, z) sweeps split x of head y of row z.
template <int kDim>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    AppendKernel(const __grid_constant__ AppendArgs args) {
  __shared__ AppendShared shared;
  const DiffKvAppendRow& row = args.rows[blockIdx.z];
  if (row.sweep) {
    SweepSplit(
        args, row, static_cast<int32_t>(blockIdx.y), static_cast<int32_t>(blockIdx.x), shared);
  }
  if (Finishes(args, row, shared)) FinishRow<kDim>(args, row, shared);
}

absl::Status Check(const DiffKvAppendParams& params) {
  ParamChecker check("diffkv_append");
  check.NotNegative("num_rows", params.num_rows)
      .Require(
          params.num_rows <= kMaxGridRows, "num_rows", params.num_rows, "must be at most 65535");
  if (!check.ok() || params.num_rows == 0) {
    return check.status();
  }
  CheckDiffKvPages(params.pages, check);
  check.NotNull("k", params.k)
      .NotNull("v", params.v)
      .Require(FitsVectors({params.k, params.v}, {params.stride}),
               "stride",
               params.stride,
               "k and v must be aligned to 16 bytes")
      .NotNull("rows", params.rows);
  return check.status();
}

}  // namespace

absl::Status DiffKvAppend(const ExecContext& context, const DiffKvAppendParams& params) {
  if (absl::Status status = Check(params); !status.ok() || params.num_rows == 0) {
    return status;
  }
  const DeviceQueue& queue = *context.queue;
  const DiffKvGeometry& geometry = params.pages.geometry;
  const int64_t heads = params.num_rows * geometry.kv_heads;
  const int64_t blocks = int64_t{kBlocksPerProcessor} * queue.multiprocessors();
  const int64_t splits = std::max(kLeastSplits, blocks / heads);
  const auto needed = static_cast<size_t>(heads * splits) * sizeof(Found);
  if (needed > queue.workspace().size()) {
    return absl::ResourceExhaustedError(absl::StrCat("diffkv_append: workspace has ",
                                                     queue.workspace().size(),
                                                     " bytes but ",
                                                     needed,
                                                     " are needed"));
  }
  const AppendArgs args = {.k = static_cast<const uint4*>(params.k),
                           .v = static_cast<const uint4*>(params.v),
                           .stride = params.stride / 8,
                           .rows = params.rows,
                           .pages = params.pages,
                           .found = queue.workspace().as<Found>(),
                           .counters = queue.counters(),
                           .splits = static_cast<int32_t>(splits)};
  const dim3 grid(static_cast<uint32_t>(splits),
                  static_cast<uint32_t>(geometry.kv_heads),
                  static_cast<uint32_t>(params.num_rows));
  if (geometry.head_dim == 128) {
    AppendKernel<128><<<grid, kThreads, 0, queue.stream()>>>(args);
  } else {
    AppendKernel<64><<<grid, kThreads, 0, queue.stream()>>>(args);
  }
  return ToStatus(cudaGetLastError(), "diffkv_append");
}

}  // namespace baton::kernels::cuda
