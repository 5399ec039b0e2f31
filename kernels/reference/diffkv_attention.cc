#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/diffkv_page.h"
#include "kernels/kv_format/quantize.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {
namespace {

// The largest head_dim that has a page layout.
constexpr int32_t kMaxHeadDim = 128;

// One sequence's tokens of one KV head: high slots first, then low slots.
class QuantizedHead {
 public:
  QuantizedHead(const DiffKvAttentionParams& params, const DiffKvAttentionRow& row, int32_t head)
      : params_(params), row_(row), head_(head) {}

  int32_t tokens() const { return Count(kDiffKvHigh) + Count(kDiffKvLow); }
  bool Visible(int32_t token) const {
    return params_.sliding_window == 0 ||
           row_.position - Page(token).position(Slot(token)) < params_.sliding_window;
  }
  double Score(const float* q, int32_t token) const {
    const DiffKvPage page = Page(token);
    const int32_t slot = Slot(token);
    double dot = 0.0;
    for (int32_t i = 0; i < page.layout().head_dim; ++i) {
      dot += double{q[i]} * Widen(page.KeyCode(slot, i), page.key_range(slot));
    }
    return dot * double{params_.scale};
  }
  double Value(int32_t token, int32_t i) const {
    const DiffKvPage page = Page(token);
    return Widen(page.ValueCode(Slot(token), i), page.value_range(Slot(token)));
  }
  float& page_score(int32_t token) const { return Page(token).score(Slot(token)); }

 private:
  static double Widen(uint8_t code, QuantRange range) {
    return double{F16ToF32(range.scale)} * code + double{F16ToF32(range.zero)};
  }
  int32_t Count(int32_t tier) const { return DiffKvCount(row_.layer, head_, tier); }
  int32_t Tier(int32_t token) const {
    return token < Count(kDiffKvHigh) ? kDiffKvHigh : kDiffKvLow;
  }
  int32_t TierSlot(int32_t token) const {
    return token < Count(kDiffKvHigh) ? token : token - Count(kDiffKvHigh);
  }
  int32_t Slot(int32_t token) const {
    return TierSlot(token) % params_.pages.geometry.layout(Tier(token)).page_tokens();
  }
  DiffKvPage Page(int32_t token) const {
    const DiffKvPageLayout layout = params_.pages.geometry.layout(Tier(token));
    const int32_t page = TierSlot(token) / layout.page_tokens();
    return {layout, DiffKvPageData(params_.pages, row_.layer, head_, Tier(token), page)};
  }

  const DiffKvAttentionParams& params_;
  const DiffKvAttentionRow& row_;
  int32_t head_;
};

// Softmax attention of one query head in two passes, with fp64 sums; also raises
// probabilities[token], if it is set, to the probability that the head gives the token. `out` holds
// attention over other keys, of log-sum-exp `prior` (-inf: none). Returns the log-sum-exp over all.
double AttendOneHead(const QuantizedHead& kv,
                     const float* q,
                     int32_t head_dim,
                     double prior,
                     float* out,
                     float* probabilities) {
  double max_score = prior;
  for (int32_t token = 0; token < kv.tokens(); ++token) {
    if (kv.Visible(token)) max_score = std::max(max_score, kv.Score(q, token));
  }
  if (max_score == -INFINITY) {
    std::fill(out, out + head_dim, 0.0f);
    return max_score;
  }
  double sum = std::exp(prior - max_score);
  const double prior_weight = sum;
  for (int32_t token = 0; token < kv.tokens(); ++token) {
    if (kv.Visible(token)) sum += std::exp(kv.Score(q, token) - max_score);
  }
  double values[kMaxHeadDim] = {};
  for (int32_t i = 0; prior_weight > 0.0 && i < head_dim; ++i) {
    values[i] = prior_weight / sum * double{out[i]};
  }
  for (int32_t token = 0; token < kv.tokens(); ++token) {
    if (!kv.Visible(token)) continue;
    const double weight = std::exp(kv.Score(q, token) - max_score) / sum;
    if (probabilities != nullptr) {
      probabilities[token] = std::max(probabilities[token], static_cast<float>(weight));
    }
    for (int32_t i = 0; i < head_dim; ++i) {
      values[i] += weight * kv.Value(token, i);
    }
  }
  for (int32_t i = 0; i < head_dim; ++i) {
    out[i] = static_cast<float>(values[i]);
  }
  return max_score + std::log(sum);
}

void AttendRow(const DiffKvAttentionParams& params, const DiffKvAttentionRow& row) {
  const DiffKvGeometry& geometry = params.pages.geometry;
  const int64_t group = params.heads / std::max(geometry.kv_heads, 1);
  const float* q = Floats(params.q) + row.row * params.q_stride;
  float* out = Floats(params.out) + row.row * params.out_stride;
  for (int32_t kv_head = 0; kv_head < geometry.kv_heads; ++kv_head) {
    const QuantizedHead kv(params, row, kv_head);
    float* probabilities = row.probabilities == nullptr
                               ? nullptr
                               : row.probabilities + kv_head * row.probability_stride;
    if (params.first && probabilities != nullptr) {
      std::fill(probabilities, probabilities + kv.tokens(), 0.0f);
    }
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const double lse = AttendOneHead(kv,
                                       q + head * geometry.head_dim,
                                       geometry.head_dim,
                                       row.lse == nullptr ? -INFINITY : double{row.lse[head]},
                                       out + head * geometry.head_dim,
                                       probabilities);
      if (row.lse != nullptr) row.lse[head] = static_cast<float>(lse);
    }
    for (int32_t token = 0; params.last && probabilities != nullptr && token < kv.tokens();
         ++token) {
      kv.page_score(token) += probabilities[token];
    }
  }
}

}  // namespace

absl::Status DiffKvAttention(const ExecContext&, const DiffKvAttentionParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int64_t r = 0; r < params.num_rows; ++r) {
    AttendRow(params, params.rows[r]);
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
