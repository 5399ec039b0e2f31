#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {
namespace {

double Score(const AttentionProbabilitiesParams& params,
             const float* q,
             int32_t kv_head,
             int32_t token) {
  const DensePageLayout& layout = params.pages.layout;
  const auto id = static_cast<size_t>(params.page_table[token / layout.page_tokens]);
  const std::byte* key = params.pages.base + id * layout.stride_bytes() +
                         layout.key_offset(kv_head, token % layout.page_tokens);
  double dot = 0.0;
  for (int32_t i = 0; i < layout.head_dim; ++i) {
    dot += double{q[i]} * double{LoadElement(key, layout.dtype, static_cast<size_t>(i))};
  }
  return dot * double{params.scale};
}

// A token's probability is e^(score - max) / sum.
struct Softmax {
  double max = 0.0;
  double sum = 1.0;
};

// Over one query head's scores of tokens [first, last].
Softmax Measure(const AttentionProbabilitiesParams& params,
                const float* q,
                int32_t kv_head,
                int32_t first,
                int32_t last) {
  double max_score = -INFINITY;
  for (int32_t token = first; token <= last; ++token) {
    max_score = std::max(max_score, Score(params, q, kv_head, token));
  }
  double sum = 0.0;
  for (int32_t token = first; token <= last; ++token) {
    sum += std::exp(Score(params, q, kv_head, token) - max_score);
  }
  return {.max = max_score, .sum = sum};
}

// Raises the probabilities of tokens [first, last], the first of which is out[0], to those that a
// query head gives them.
void RaiseByOneHead(const AttentionProbabilitiesParams& params,
                    const float* q,
                    int32_t kv_head,
                    int32_t first,
                    int32_t last,
                    const Softmax& softmax,
                    float* out) {
  for (int32_t token = first; token <= last; ++token) {
    const double weight = std::exp(Score(params, q, kv_head, token) - softmax.max);
    out[token - first] = std::max(out[token - first], static_cast<float>(weight / softmax.sum));
  }
}

}  // namespace

absl::Status AttentionProbabilities(const ExecContext&,
                                    const AttentionProbabilitiesParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  if (params.rows == 0) {
    return absl::OkStatus();
  }
  const int32_t kv_heads = params.pages.layout.kv_heads;
  const int64_t group = params.heads / kv_heads;
  const int32_t end =
      *std::max_element(params.positions, params.positions + params.rows) + 1 - params.key_begin;
  for (int64_t row = 0; row < params.rows; ++row) {
    const int32_t last = params.positions[row];
    const int32_t first = std::max(
        params.key_begin, params.sliding_window > 0 ? last - params.sliding_window + 1 : 0);
    for (int32_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      float* out = params.probabilities + (row * kv_heads + kv_head) * params.probability_stride;
      if (!params.combine) {
        std::fill(out, out + end, 0.0f);
      }
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const float* q =
            Floats(params.q) + row * params.q_stride + head * params.pages.layout.head_dim;
        const Softmax softmax = params.lse == nullptr
                                    ? Measure(params, q, kv_head, first, last)
                                    : Softmax{.max = params.lse[row * params.heads + head]};
        RaiseByOneHead(params, q, kv_head, first, last, softmax, out + first - params.key_begin);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
