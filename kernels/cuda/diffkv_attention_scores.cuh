// Probabilities from the weights that diffkv_attention kept.
#pragma once

#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/diffkv_attention_kept.cuh"
#include "kernels/cuda/diffkv_attention_plan.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/row_list.cuh"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/early_launch.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels::cuda::diffkv {

inline constexpr int32_t kScoreThreads = 256;
inline constexpr int32_t kScoreWarps = kScoreThreads / kWarpLanes;
inline constexpr int32_t kScoreBlocks = 4;  // of a multiprocessor
// Of a warp at a time, so that as many chains of reads are on their way.
inline constexpr int32_t kScorePages = 2;
// Most parts of a KV head's pages, which are dealt to warps one at a time.
inline constexpr int32_t kScoreParts = 32;
// Tokens of a page that a lane has.
inline constexpr int32_t kLaneTokens = 2;
static_assert(kLaneTokens * kWarpLanes >= DiffKvPageTokens({4, 2}));

using ScoredRows = RowList<kScoreThreads, kMaxRows / kScoreThreads>;
static_assert(ScoredRows::kRows == kMaxRows, "the rows of a launch are looked at in one go");

// A token's columns in registers.
template <int kColumns, typename T>
struct alignas(kColumns * sizeof(T) < 16 ? kColumns * sizeof(T) : 16) ScoreColumns {
  T of[kColumns];
};

// A page of a KV head whose probabilities are made.
struct ScoredPage {
  int32_t index;        // among the head's, high before low
  int32_t first_token;  // among the head's
  int32_t tokens;
  float* scores;  // in the page
};

// A KV head of a row, whose tokens of the high tier come first.
class ScoredHead {
 public:
  __device__ ScoredHead(const Plan& plan,
                        const Workspace& workspace,
                        int32_t row_index,
                        int32_t head)
      : plan_(plan), row_(plan.params.rows[row_index]), head_(head) {
    high_ = DiffKvCount(row_.layer, head, kDiffKvHigh);
    low_ = DiffKvCount(row_.layer, head, kDiffKvLow);
    high_pages_ = plan.PagesOf(kDiffKvHigh, high_);
    low_pages_ = plan.PagesOf(kDiffKvLow, low_);
    lse_ = &workspace.lse(plan.params.num_rows, row_index, head * plan.group);
  }

  __device__ int32_t pages() const { return high_pages_ + low_pages_; }

  __device__ ScoredPage Page(int32_t index) const {
    const bool is_high = index < high_pages_;
    const int32_t tier = is_high ? kDiffKvHigh : kDiffKvLow;
    const int32_t page = is_high ? index : index - high_pages_;
    const int32_t begin = page * plan_.page_tokens[tier];
    std::byte* const data = DiffKvPageData(plan_.params.pages, row_.layer, head_, tier, page);
    return {.index = index,
            .first_token = begin + (is_high ? 0 : high_),
            .tokens = min((is_high ? high_ : low_) - begin, plan_.page_tokens[tier]),
            .scores = reinterpret_cast<float*>(data + plan_.read_bytes[tier])};
  }

  // Those of a column group.
  __device__ KeptWeights kept(int32_t group) const {
    return KeptWeights::Of(
        plan_.params, row_, head_ * plan_.column_groups + group, plan_.kept_columns);
  }
  // Log-sum-exp to base 2 of a query head; infinite where there is none.
  __device__ float lse(int32_t query_head) const {
    return query_head < plan_.group ? lse_[query_head] : INFINITY;
  }
  // The largest probabilities of tokens so far.
  __device__ float* probabilities() const {
    return row_.probabilities + head_ * row_.probability_stride;
  }

 private:
  const Plan& plan_;
  const DiffKvAttentionRow& row_;
  int32_t head_;
  int32_t high_;  // tokens
  int32_t low_;
  int32_t high_pages_;
  int32_t low_pages_;
  const float* lse_;
};

using PageProbabilities = float[kScorePages][kLaneTokens];

// A lane's token of a page, the last one where it has none.
__device__ inline int32_t LaneToken(const ScoredPage& page, int i) {
  return min(static_cast<int32_t>(threadIdx.x % kWarpLanes) + i * kWarpLanes, page.tokens - 1);
}

// Raises a lane's probabilities to those of one column group.
template <int kColumns>
__device__ inline void TakeColumns(const ScoredHead& head,
                                   int32_t group,
                                   const ScoredPage (&pages)[kScorePages],
                                   PageProbabilities& probabilities) {
  using Weights = ScoreColumns<kColumns, __half>;
  using References = ScoreColumns<kColumns, float>;
  const KeptWeights kept = head.kept(group);
  Weights weights[kScorePages][kLaneTokens];
  References references[kScorePages];
#pragma unroll
  for (int p = 0; p < kScorePages; ++p) {
    references[p] = reinterpret_cast<const References*>(kept.references)[pages[p].index];
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) {
      weights[p][i] = reinterpret_cast<const Weights*>(
          kept.weights)[pages[p].first_token + LaneToken(pages[p], i)];
    }
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const float lse = head.lse(group * kColumns + c);
#pragma unroll
    for (int p = 0; p < kScorePages; ++p) {
      const float factor = Exp2(references[p].of[c] - lse);
#pragma unroll
      for (int i = 0; i < kLaneTokens; ++i) {
        float& probability = probabilities[p][i];
        probability = fmaxf(probability, __half2float(weights[p][i].of[c]) * factor);
      }
    }
  }
}

// Probabilities of a warp's pages; the last layer of a group adds them to the scores in the pages.
// A page that comes twice is taken the first time.
template <int kColumns>
__device__ inline void ScorePages(const Plan& plan,
                                  const ScoredHead& head,
                                  const ScoredPage (&pages)[kScorePages]) {
  PageProbabilities probabilities = {};
#pragma unroll
  for (int p = 0; p < kScorePages; ++p) {
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) {
      if (plan.params.first) continue;
      probabilities[p][i] = head.probabilities()[pages[p].first_token + LaneToken(pages[p], i)];
    }
  }
#pragma unroll 1
  for (int32_t group = 0; group < plan.column_groups; ++group) {
    TakeColumns<kColumns>(head, group, pages, probabilities);
  }
#pragma unroll
  for (int p = 0; p < kScorePages; ++p) {
    if (p > 0 && pages[p].index == pages[p - 1].index) break;
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) {
      const int32_t token = static_cast<int32_t>(threadIdx.x % kWarpLanes) + i * kWarpLanes;
      if (token >= pages[p].tokens) break;
      head.probabilities()[pages[p].first_token + token] = probabilities[p][i];
      if (plan.params.last) atomicAdd(pages[p].scores + token, probabilities[p][i]);
    }
  }
}

// Few rows of many are scored in a step: blocks find them, and take parts of their heads in turn,
// which are so many that every block has one.
template <int kColumns>
__global__ void __launch_bounds__(kScoreThreads, kScoreBlocks)
    ScoreKernel(const __grid_constant__ Plan plan, const Workspace workspace) {
  __shared__ ScoredRows scored;
  LaunchDependents();
  WaitForPredecessors();
  const DiffKvAttentionParams& params = plan.params;
  const int32_t kv_heads = params.pages.geometry.kv_heads;
  const int32_t heads = kv_heads * scored.Find(0, params.num_rows, [&](int64_t row) {
    return params.rows[row].probabilities != nullptr;
  });
  const auto blocks = static_cast<int32_t>(gridDim.x);
  const int32_t head_parts = min(max(blocks / max(heads, 1), 1), kScoreParts);
  const int32_t warps = head_parts * kScoreWarps;
  for (auto part = static_cast<int32_t>(blockIdx.x); part < heads * head_parts; part += blocks) {
    const int32_t index = part / head_parts;
    const ScoredHead head(
        plan, workspace, static_cast<int32_t>(scored.rows[index / kv_heads]), index % kv_heads);
    const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
    const int32_t end = head.pages();
    for (int32_t page = part % head_parts * kScoreWarps + warp; page < end;
         page += kScorePages * warps) {
      ScoredPage pages[kScorePages];
#pragma unroll
      for (int p = 0; p < kScorePages; ++p) {
        pages[p] = head.Page(page + p * warps < end ? page + p * warps : page);
      }
      ScorePages<kColumns>(plan, head, pages);
    }
  }
}

// Behind the attention of the same call, whose log-sum-exps are in the workspace.
inline cudaError_t LaunchScores(const DeviceQueue& queue,
                                const Plan& plan,
                                const Workspace& workspace) {
  const int64_t parts = plan.params.num_rows * plan.params.pages.geometry.kv_heads * kScoreParts;
  const int64_t blocks = int64_t{kScoreBlocks} * queue.multiprocessors();
  const auto kernel = plan.kept_columns == 1   ? ScoreKernel<1>
                      : plan.kept_columns == 2 ? ScoreKernel<2>
                      : plan.kept_columns == 4 ? ScoreKernel<4>
                                               : ScoreKernel<8>;
  return LaunchEarly(queue,
                     kernel,
                     static_cast<uint32_t>(std::min(parts, blocks)),
                     kScoreThreads,
                     0,
                     plan,
                     workspace);
}

}  // namespace baton::kernels::cuda::diffkv
