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
// Into which the tokens of a KV head are dealt, a thread's width at a time.
inline constexpr int32_t kScoreParts = 32;

using ScoredRows = RowList<kScoreThreads, kMaxRows / kScoreThreads>;
static_assert(ScoredRows::kRows == kMaxRows, "the rows of a launch are looked at in one go");

// Part `part` of the probabilities of a head's tokens; the last layer of a group adds them to the
// scores in the pages.
__device__ inline void ScorePart(const DiffKvAttentionParams& params,
                                 const Workspace& workspace,
                                 int32_t row_index,
                                 int32_t head,
                                 int32_t part) {
  const DiffKvAttentionRow& row = params.rows[row_index];
  const DiffKvGeometry& geometry = params.pages.geometry;
  const auto group = static_cast<int32_t>(params.heads / geometry.kv_heads);
  const int32_t high = DiffKvCount(row.layer, head, kDiffKvHigh);
  const int32_t tokens = high + DiffKvCount(row.layer, head, kDiffKvLow);
  float* probabilities = row.probabilities + head * row.probability_stride;
  const float* scores = params.scratch + row.scratch_begin;
  for (int32_t token = part * kScoreThreads + static_cast<int32_t>(threadIdx.x); token < tokens;
       token += kScoreParts * kScoreThreads) {
    float probability = params.first ? 0.0f : probabilities[token];
    for (int32_t q = head * group; q < (head + 1) * group; ++q) {
      const float score = scores[q * row.probability_stride + token];
      probability = fmaxf(probability, Exp2(score - workspace.lse(params.num_rows, row_index, q)));
    }
    probabilities[token] = probability;
    if (params.last) {
      const int32_t tier = token < high ? kDiffKvHigh : kDiffKvLow;
      const int32_t slot = token < high ? token : token - high;
      const DiffKvPageLayout layout = geometry.layout(tier);
      std::byte* page =
          DiffKvPageData(params.pages, row.layer, head, tier, slot / layout.page_tokens());
      reinterpret_cast<float*>(page + layout.scores())[slot % layout.page_tokens()] += probability;
    }
  }
}

// Few rows of many are scored in a step: blocks find them, and take parts of their heads in turn.
__global__ void __launch_bounds__(kScoreThreads, kScoreBlocks)
    ScoreKernel(const __grid_constant__ DiffKvAttentionParams params, const Workspace workspace) {
  __shared__ ScoredRows scored;
  const int32_t row_parts = params.pages.geometry.kv_heads * kScoreParts;
  const int32_t parts = row_parts * scored.Find(0, params.num_rows, [&](int64_t row) {
    return params.rows[row].probabilities != nullptr;
  });
  for (auto part = static_cast<int32_t>(blockIdx.x); part < parts;
       part += static_cast<int32_t>(gridDim.x)) {
    ScorePart(params,
              workspace,
              static_cast<int32_t>(scored.rows[part / row_parts]),
              part % row_parts / kScoreParts,
              part % kScoreParts);
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
