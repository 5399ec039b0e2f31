// Probabilities from the scores that diffkv_attention kept.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/diffkv_attention_plan.cuh"
#include "kernels/cuda/diffkv_page_attention.cuh"
#include "kernels/cuda/row_list.cuh"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels::cuda::diffkv {

inline constexpr int32_t kScoreThreads = 256;
inline constexpr int32_t kScoreBlocks = 4;  // of a multiprocessor
// Of a thread at a time, so that as many chains of reads are on their way.
inline constexpr int32_t kScoreTokens = 4;
// Query heads whose scores of them are read at once.
inline constexpr int32_t kScoreHeads = 2;
// Most parts of a KV head's tokens, which are dealt kScoreTokens block's widths at a time.
inline constexpr int32_t kScoreParts = 32;

using ScoredRows = RowList<kScoreThreads, kMaxRows / kScoreThreads>;
static_assert(ScoredRows::kRows == kMaxRows, "the rows of a launch are looked at in one go");

// Where scores of a head's tokens of a tier lie in their pages.
struct ScoredTier {
  const int32_t* page_ids;  // of the first page; the next one's is `step` further
  int32_t step;
  int32_t page_tokens;
  uint32_t inverse;  // 2^32 / page_tokens, rounded up: slots below 2^26 are divided by it exactly
  uint32_t offset;   // in a page
};

// A KV head of a row, whose tokens of the high tier come first.
struct ScoredHead {
  int32_t group;
  int32_t high;
  int32_t tokens;
  ScoredTier tiers[kDiffKvTiers];
  float* probabilities;
  const float* scores;  // of the first query head, those of the next `stride` further
  int64_t stride;
  const float* lse;  // of the query heads

  __device__ ScoredHead(const DiffKvAttentionParams& params,
                        const Workspace& workspace,
                        int32_t row_index,
                        int32_t head) {
    const DiffKvAttentionRow& row = params.rows[row_index];
    const DiffKvGeometry& geometry = params.pages.geometry;
    group = static_cast<int32_t>(params.heads / geometry.kv_heads);
    high = DiffKvCount(row.layer, head, kDiffKvHigh);
    tokens = high + DiffKvCount(row.layer, head, kDiffKvLow);
    stride = row.probability_stride;
    probabilities = row.probabilities + head * stride;
    scores = params.scratch + row.scratch_begin + int64_t{head} * group * stride;
    lse = &workspace.lse(params.num_rows, row_index, head * group);
    for (const int32_t tier : {kDiffKvHigh, kDiffKvLow}) {
      const DiffKvPageLayout layout = geometry.layout(tier);
      const auto page_tokens = static_cast<uint32_t>(layout.page_tokens());
      tiers[tier] = {.page_ids = &DiffKvPageId(row.layer, head, tier, 0),
                     .step = tier == kDiffKvHigh ? 1 : -1,
                     .page_tokens = layout.page_tokens(),
                     .inverse = ~0u / page_tokens + 1,
                     .offset = static_cast<uint32_t>(layout.scores())};
    }
  }

  // Where a token's score is in its page.
  __device__ float* PageScore(const DiffKvPages& pages, int32_t token) const {
    const bool is_high = token < high;
    const ScoredTier tier = is_high ? tiers[kDiffKvHigh] : tiers[kDiffKvLow];
    const int32_t slot = is_high ? token : token - high;
    const auto page = static_cast<int32_t>(__umulhi(static_cast<uint32_t>(slot), tier.inverse));
    const auto id = static_cast<size_t>(tier.page_ids[page * tier.step]);
    std::byte* scores_of_page = pages.base + id * pages.geometry.page_bytes() + tier.offset;
    return reinterpret_cast<float*>(scores_of_page) + (slot - page * tier.page_tokens);
  }
};

// Probabilities of the tokens first + i kScoreThreads that there are, i < kScoreTokens; the last
// layer of a group adds them to the scores in the pages. `first` is one. Past the end the last
// token is read.
__device__ inline void ScoreTokens(const DiffKvAttentionParams& params,
                                   const ScoredHead& head,
                                   int32_t first) {
  int32_t token[kScoreTokens];
  float probability[kScoreTokens] = {};
  float* page_scores[kScoreTokens];
#pragma unroll
  for (int i = 0; i < kScoreTokens; ++i) {
    token[i] = min(first + i * kScoreThreads, head.tokens - 1);
    if (!params.first) probability[i] = head.probabilities[token[i]];
    if (!params.last) continue;
    page_scores[i] = head.PageScore(params.pages, token[i]);
  }
#pragma unroll 1
  for (int32_t q = 0; q < head.group; q += kScoreHeads) {
    float score[kScoreHeads][kScoreTokens];
    float lse[kScoreHeads];
#pragma unroll
    for (int h = 0; h < kScoreHeads; ++h) {
      // Past the last head, that one again.
      const int32_t own = min(q + h, head.group - 1);
      lse[h] = head.lse[own];
#pragma unroll
      for (int i = 0; i < kScoreTokens; ++i) {
        score[h][i] = __ldcs(head.scores + own * head.stride + token[i]);
      }
    }
#pragma unroll
    for (int h = 0; h < kScoreHeads; ++h) {
#pragma unroll
      for (int i = 0; i < kScoreTokens; ++i) {
        probability[i] = fmaxf(probability[i], Exp2(score[h][i] - lse[h]));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kScoreTokens; ++i) {
    if (first + i * kScoreThreads >= head.tokens) break;
    head.probabilities[token[i]] = probability[i];
    if (params.last) atomicAdd(page_scores[i], probability[i]);
  }
}

// Few rows of many are scored in a step: blocks find them, and take parts of their heads in turn,
// which are so many that every block has one.
__global__ void __launch_bounds__(kScoreThreads, kScoreBlocks)
    ScoreKernel(const __grid_constant__ DiffKvAttentionParams params, const Workspace workspace) {
  __shared__ ScoredRows scored;
  const int32_t kv_heads = params.pages.geometry.kv_heads;
  const int32_t heads = kv_heads * scored.Find(0, params.num_rows, [&](int64_t row) {
    return params.rows[row].probabilities != nullptr;
  });
  const auto blocks = static_cast<int32_t>(gridDim.x);
  const int32_t head_parts = min(max(blocks / max(heads, 1), 1), kScoreParts);
  constexpr int32_t kWidth = kScoreTokens * kScoreThreads;
  for (auto part = static_cast<int32_t>(blockIdx.x); part < heads * head_parts; part += blocks) {
    const int32_t index = part / head_parts;
    const ScoredHead head(
        params, workspace, static_cast<int32_t>(scored.rows[index / kv_heads]), index % kv_heads);
    const auto own = part % head_parts * kWidth + static_cast<int32_t>(threadIdx.x);
    for (int32_t first = own; first < head.tokens; first += head_parts * kWidth) {
      ScoreTokens(params, head, first);
    }
  }
}

// Behind the attention of the same call, whose log-sum-exps are in the workspace.
inline void LaunchScores(const DeviceQueue& queue,
                         const DiffKvAttentionParams& params,
                         const Workspace& workspace) {
  const int64_t parts = params.num_rows * params.pages.geometry.kv_heads * kScoreParts;
  const int64_t blocks = int64_t{kScoreBlocks} * queue.multiprocessors();
  ScoreKernel<<<static_cast<uint32_t>(std::min(parts, blocks)), kScoreThreads, 0, queue.stream()>>>(
      params, workspace);
}

}  // namespace baton::kernels::cuda::diffkv
