#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/kv_format/shadowkv_codec.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/shadowkv_host.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/shadowkv_view.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/reference/shadowkv_workspace.h"

namespace baton::kernels::reference {
namespace {

// q . x of a vector in codes; pair: its scale and zero.
double CodedScore(
    const float* q, int64_t n, const uint8_t* codes, int32_t bits, const uint16_t* pair) {
  double dot = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const double code = ShadowKvLoadCode(codes, i, bits);
    dot += double{q[i]} * (double{F16ToF32(pair[0])} * code + double{F16ToF32(pair[1])});
  }
  return dot;
}

// q . mean, plus sum |q_i| deviation_i for the bounds.
double LandmarkScore(const ShadowKvConfig& config,
                     const ShadowKvChunk& chunk,
                     int64_t head,
                     const float* q) {
  const std::byte* landmarks = chunk.section.Landmarks(head);
  if (config.quantized_landmarks()) {
    return CodedScore(q,
                      config.head_dim,
                      reinterpret_cast<const uint8_t*>(landmarks) +
                          static_cast<size_t>(chunk.chunk) * config.landmark_bytes(),
                      config.landmark_bits,
                      chunk.section.LandmarkScales(head) + 2 * chunk.chunk);
  }
  double score = 0.0;
  for (int64_t i = 0; i < config.head_dim; ++i) {
    const auto element = static_cast<size_t>(chunk.chunk * config.head_dim + i);
    score += double{q[i]} * double{LoadElement(landmarks, config.dtype, element)};
    if (config.selector == ShadowKvSelector::kBounds) {
      score += double{std::fabs(q[i])} *
               double{LoadElement(chunk.section.Deviations(head), config.dtype, element)};
    }
  }
  return score;
}

// q . k^ of one token's 2-bit key; `token` counts from the section's first.
double CodedKeyScore(const ShadowKvConfig& config,
                     const ShadowKvCodedView& section,
                     int64_t head,
                     int64_t token,
                     const float* q) {
  return CodedScore(
      q, config.head_dim, section.KeyCodes(head, token), 2, section.KeyScale(head, token));
}

// The largest q . k^ over the chunk's 2-bit keys.
double CodedKeysScore(const ShadowKvConfig& config,
                      const ShadowKvChunk& chunk,
                      int64_t head,
                      const float* q) {
  double best = -INFINITY;
  for (int64_t t = 0; t < config.chunk_tokens; ++t) {
    best = std::max(
        best, CodedKeyScore(config, chunk.section, head, chunk.chunk * config.chunk_tokens + t, q));
  }
  return best;
}

// logits[c] of every chunk under one query head; -inf for static chunks.
void ComputeLogits(
    const ShadowKvSequenceView& view, int64_t head, const float* q, float scale, double* logits) {
  const ShadowKvConfig& config = view.config();
  for (int64_t c = 0; c < view.chunks(); ++c) {
    const ShadowKvChunk chunk = view.Chunk(c);
    logits[c] = double{scale} * (config.selector == ShadowKvSelector::kQ2
                                     ? CodedKeysScore(config, chunk, head, q)
                                     : LandmarkScore(config, chunk, head, q));
  }
  for (int64_t i = 0; i < view.layout().static_chunks; ++i) {
    logits[view.StaticIds(head)[i]] = -INFINITY;
  }
}

double LogSumExp(const double* logits, int64_t n) {
  const double max = *std::max_element(logits, logits + n);
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    sum += std::exp(logits[i] - max);
  }
  return max + std::log(sum);
}

// logits[c] = log(sum e^logit) over the cluster's tokens of chunks that are not taken.
void SumClusters(const ShadowKvSelectParams& params,
                 const ShadowKvSequenceView& view,
                 int64_t head,
                 const float* q,
                 const bool* taken,
                 float* logits) {
  const ShadowKvConfig& config = view.config();
  double sums[kShadowKvMaxClusters] = {};
  double max = -INFINITY;
  // Twice over the tokens: for the largest logit, then for the sums.
  for (const bool add : {false, true}) {
    for (int64_t c = 0; c < view.chunks(); ++c) {
      const ShadowKvChunk chunk = view.Chunk(c);
      for (int64_t t = 0; !taken[c] && t < config.chunk_tokens; ++t) {
        const int64_t token = chunk.chunk * config.chunk_tokens + t;
        const double logit =
            double{params.scale} * CodedKeyScore(config, chunk.section, head, token, q);
        if (add) {
          sums[*chunk.section.ClusterIds(head, token)] += std::exp(logit - max);
        } else {
          max = std::max(max, logit);
        }
      }
    }
  }
  for (int64_t i = 0; i < config.value_clusters; ++i) {
    logits[i] = sums[i] > 0.0 ? static_cast<float>(max + std::log(sums[i])) : -INFINITY;
  }
}

// The logits of one KV head's clusters under every query head of the group.
void WriteClusterLogits(const ShadowKvSelectParams& params,
                        const ShadowKvSequenceView& view,
                        int64_t index,
                        int64_t head,
                        int64_t selected,
                        bool* taken) {
  const int64_t group = params.heads / view.config().kv_heads;
  const int32_t* ids =
      params.chunk_ids + (index * view.config().kv_heads + head) * params.chunk_ids_stride;
  std::fill(taken, taken + view.chunks(), false);
  std::for_each(ids, ids + selected, [&](int32_t id) { taken[id] = true; });
  const int32_t* static_ids = view.StaticIds(head);
  std::for_each(
      static_ids, static_ids + view.layout().static_chunks, [&](int32_t id) { taken[id] = true; });
  for (int64_t line = head * group; line < (head + 1) * group; ++line) {
    SumClusters(params,
                view,
                head,
                Floats(params.q) + params.sequences[index].row * params.q_stride +
                    line * view.config().head_dim,
                taken,
                params.cluster_logits + (index * params.heads + line) * params.cluster_stride);
  }
}

// Writes the ids for one KV head of the call's sequence `index`, then -1 up to the stride.
void SelectHead(const ShadowKvSelectParams& params,
                const ShadowKvSequenceView& view,
                int64_t index,
                int64_t head,
                const SelectScratch& scratch) {
  const ShadowKvConfig& config = view.config();
  const int64_t chunks = view.chunks();
  const int64_t group = params.heads / config.kv_heads;
  const int64_t selected = ShadowKvSelectedChunks(view.layout(), view.tokens());
  int32_t* ids = params.chunk_ids + (index * config.kv_heads + head) * params.chunk_ids_stride;
  std::fill(ids, ids + params.chunk_ids_stride, -1);
  if (chunks == 0 || (selected == 0 && config.value_clusters == 0)) {
    return;
  }
  std::fill(scratch.scores, scratch.scores + chunks, -INFINITY);
  for (int64_t g = 0; g < group; ++g) {
    const float* q = Floats(params.q) + params.sequences[index].row * params.q_stride +
                     (head * group + g) * config.head_dim;
    ComputeLogits(view, head, q, params.scale, scratch.logits);
    const double total = LogSumExp(scratch.logits, chunks);
    for (int64_t c = 0; c < chunks; ++c) {
      scratch.scores[c] = std::max(scratch.scores[c], scratch.logits[c] - total);
    }
  }
  std::iota(scratch.order, scratch.order + chunks, 0);
  std::partial_sort(
      scratch.order, scratch.order + selected, scratch.order + chunks, [&](int32_t a, int32_t b) {
        const double first = scratch.scores[a];
        const double second = scratch.scores[b];
        return first != second ? first > second : a < b;
      });
  std::copy(scratch.order, scratch.order + selected, ids);
  std::sort(ids, ids + selected);
  if (config.value_clusters > 0) {
    WriteClusterLogits(params, view, index, head, selected, scratch.taken);
  }
}

}  // namespace

absl::Status ShadowKvSelect(const ExecContext& context, const ShadowKvSelectParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  if (params.cluster_logits != nullptr) {
    std::fill_n(params.cluster_logits,
                params.num_sequences * params.heads * params.cluster_stride,
                -INFINITY);
  }
  for (int64_t index = 0; index < params.num_sequences; ++index) {
    const ShadowKvSequenceView view(params.sequences[index]);
    Carver counter(nullptr);
    CarveSelect(view.config(), view.chunks(), counter);
    if (absl::Status status = CheckShadowKvWorkspace("shadowkv_select", context, counter.used());
        !status.ok()) {
      return status;
    }
    Carver carver(context.workspace->data());
    const SelectScratch scratch = CarveSelect(view.config(), view.chunks(), carver);
    for (int64_t head = 0; head < view.config().kv_heads; ++head) {
      SelectHead(params, view, index, head, scratch);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
