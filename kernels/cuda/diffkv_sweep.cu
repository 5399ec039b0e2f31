// The generation policy of format `diffkv` (docs/kernels/diffkv.md). Blocks look which rows sweep
// and share their heads out; one block looks through all tokens of a head and decides.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/diffkv_checks.h"
#include "kernels/cuda/row_list.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpLanes;
constexpr int32_t kBlocksPerProcessor = 2;
// A thread sweeps runs of four slots.
constexpr int32_t kRun = 4;
// Unobserved ranges that a block keeps near.
constexpr int32_t kNearRanges = 32;
using Rows = RowList<kThreads, 2>;

constexpr uint64_t kNoVictim = ~uint64_t{0};

// What a sweep finds, in words whose order is that of the choice: the least victim is the lowest
// mean, then the lowest slot; the largest candidate (0: none) the last slot. Zeros of both signs
// are one mean.
struct Found {
  uint64_t victims[kDiffKvTiers];
  uint64_t candidate;

  __device__ void Merge(const Found& other) {
    for (int tier = 0; tier < kDiffKvTiers; ++tier) {
      victims[tier] = min(victims[tier], other.victims[tier]);
    }
    candidate = max(candidate, other.candidate);
  }
};

__device__ Found FoundNothing() { return {.victims = {kNoVictim, kNoVictim}, .candidate = 0}; }

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

struct SweepShared {
  UnobservedRange ranges[kNearRanges];
  Found found[kWarps];
  Rows rows;  // that sweep
};

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

// Sweeps a tier of one head: 8 bytes of a page for each token.
__device__ void SweepTier(const DiffKvPages& pages,
                          const DiffKvAppendRow& row,
                          const DiffKvPolicy& policy,
                          int32_t head,
                          int32_t tier,
                          Found& found) {
  const DiffKvPageLayout layout = pages.geometry.layout(tier);
  const std::byte* scores = pages.base + layout.scores();
  const size_t to_positions = layout.positions() - layout.scores();
  const int32_t page_runs = layout.page_tokens() / kRun;
  const int32_t count = DiffKvCount(row.layer, head, tier);
  const int32_t row_position = row.position;
  const int32_t* ids = &DiffKvPageId(row.layer, head, tier, 0);
  const int32_t step = tier == kDiffKvHigh ? 1 : -1;
  uint64_t victim = kNoVictim;
  int32_t run = static_cast<int32_t>(threadIdx.x);
  int32_t page = run / page_runs;
  int32_t in_page = run % page_runs;
#pragma unroll 2
  for (; run * kRun < count; run += kThreads) {
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
  for (int step = 1; step < kWarpLanes; step *= 2) {
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

__device__ DiffKvAction Decide(const DiffKvAppendRow& row, int32_t head, const Found& found) {
  DiffKvHeadState state;
  for (int tier = 0; tier < kDiffKvTiers; ++tier) {
    state.counts[tier] = DiffKvCount(row.layer, head, tier);
    state.victims[tier] = VictimOf(found.victims[tier]);
  }
  state.candidate = CandidateOf(found.candidate);
  return DecideDiffKv(row.policy, row.position, state);
}

// One head, by the block. Shared memory is free again when it returns.
__device__ void SweepHead(const DiffKvPages& pages,
                          const DiffKvAppendRow& row,
                          int32_t head,
                          SweepShared& shared) {
  const DiffKvPolicy policy = NearPolicy(row, shared.ranges);
  Found found = FoundNothing();
#pragma unroll 1
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    SweepTier(pages, row, policy, head, tier, found);
  }
  found = WarpMerge(found);
  if (threadIdx.x % kWarpLanes == 0) shared.found[threadIdx.x / kWarpLanes] = found;
  __syncthreads();
  if (threadIdx.x / kWarpLanes == 0) {
    found = WarpMerge(threadIdx.x < kWarps ? shared.found[threadIdx.x] : FoundNothing());
    if (threadIdx.x == 0) row.actions[head] = Decide(row, head, found);
  }
  __syncthreads();
}

// Heads of rows that sweep are dealt to the blocks in turn, over all rows.
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    SweepKernel(const __grid_constant__ DiffKvSweepParams params) {
  __shared__ alignas(SweepShared) std::byte memory[sizeof(SweepShared)];
  SweepShared& shared = *reinterpret_cast<SweepShared*>(memory);
  const int32_t kv_heads = params.pages.geometry.kv_heads;
  const auto sweeps = [&](int64_t row) { return params.rows[row].sweep; };
  auto next = static_cast<int32_t>(blockIdx.x);  // head, counted from those of `first` on
  for (int64_t first = 0; first < params.num_rows; first += Rows::kRows) {
    const int32_t heads = shared.rows.Find(first, params.num_rows, sweeps) * kv_heads;
    for (; next < heads; next += static_cast<int32_t>(gridDim.x)) {
      const DiffKvAppendRow& row = params.rows[shared.rows.rows[next / kv_heads]];
      SweepHead(params.pages, row, next % kv_heads, shared);
    }
    next -= heads;
    __syncthreads();
  }
}

absl::Status Check(const DiffKvSweepParams& params) {
  ParamChecker check("diffkv_sweep");
  check.NotNegative("num_rows", params.num_rows);
  if (!check.ok() || params.num_rows == 0) {
    return check.status();
  }
  CheckDiffKvPages(params.pages, check);
  check.NotNull("rows", params.rows);
  return check.status();
}

}  // namespace

absl::Status DiffKvSweep(const ExecContext& context, const DiffKvSweepParams& params) {
  if (absl::Status status = Check(params); !status.ok() || params.num_rows == 0) {
    return status;
  }
  const DeviceQueue& queue = *context.queue;
  const int64_t heads = params.num_rows * params.pages.geometry.kv_heads;
  const auto blocks = static_cast<uint32_t>(
      std::min<int64_t>(heads, int64_t{kBlocksPerProcessor} * queue.multiprocessors()));
  SweepKernel<<<blocks, kThreads, 0, queue.stream()>>>(params);
  return ToStatus(cudaGetLastError(), "diffkv_sweep");
}

}  // namespace baton::kernels::cuda
