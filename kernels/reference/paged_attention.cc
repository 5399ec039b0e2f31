#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/core/float8.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {
namespace {

// One sequence's keys or values of one KV head, element by element.
class PagedHead {
 public:
  PagedHead(const DensePages& pages, const int32_t* page_table, int32_t head)
      : pages_(pages), page_table_(page_table), head_(head) {}

  float Key(int32_t token, int32_t i) const {
    return Load(Page(token),
                pages_.layout.key_offset(head_, Slot(token)),
                pages_.layout.key_scale_offset(head_, Slot(token)),
                i);
  }
  float Value(int32_t token, int32_t i) const {
    return Load(Page(token),
                pages_.layout.value_offset(head_, Slot(token)),
                pages_.layout.value_scale_offset(head_, Slot(token)),
                i);
  }

 private:
  // Element `i` of the head at `offset`.
  float Load(const std::byte* page, size_t offset, size_t scale_offset, int32_t i) const {
    if (!pages_.layout.has_scales()) {
      return LoadElement(page + offset, pages_.layout.dtype, static_cast<size_t>(i));
    }
    const auto code = std::to_integer<uint8_t>(page[offset + static_cast<size_t>(i)]);
    return F8E4M3ToF32(code) * *reinterpret_cast<const float*>(page + scale_offset);
  }
  int32_t Slot(int32_t token) const { return token % pages_.layout.page_tokens; }
  const std::byte* Page(int32_t token) const {
    const int32_t id = page_table_[token / pages_.layout.page_tokens];
    return pages_.base + static_cast<size_t>(id) * pages_.layout.stride_bytes();
  }

  const DensePages& pages_;
  const int32_t* page_table_;
  int32_t head_;
};

double Score(const PagedHead& head, const float* q, int32_t token, int32_t head_dim, float scale) {
  double dot = 0.0;
  for (int32_t i = 0; i < head_dim; ++i) {
    dot += double{q[i]} * double{head.Key(token, i)};
  }
  return dot * double{scale};
}

// Softmax attention of one query over tokens [first, last] in two passes: the maximum score, then
// weights, their sum and the weighted values. Scores are computed twice so that nothing is
// allocated. `out` holds attention over other keys, of log-sum-exp `prior` (-inf: none). Returns
// the log-sum-exp over all keys.
double AttendOneQuery(const PagedHead& head,
                      const float* q,
                      int32_t first,
                      int32_t last,
                      int32_t head_dim,
                      float scale,
                      double prior,
                      float* out) {
  double max_score = prior;
  for (int32_t token = first; token <= last; ++token) {
    max_score = std::max(max_score, Score(head, q, token, head_dim, scale));
  }
  if (max_score == -INFINITY) {
    std::fill(out, out + head_dim, 0.0f);
    return max_score;
  }
  double sum = std::exp(prior - max_score);
  for (int32_t i = 0; i < head_dim; ++i) {
    out[i] = sum > 0.0 ? static_cast<float>(sum * double{out[i]}) : 0.0f;
  }
  for (int32_t token = first; token <= last; ++token) {
    const double weight = std::exp(Score(head, q, token, head_dim, scale) - max_score);
    sum += weight;
    for (int32_t i = 0; i < head_dim; ++i) {
      out[i] += static_cast<float>(weight * double{head.Value(token, i)});
    }
  }
  for (int32_t i = 0; i < head_dim; ++i) {
    out[i] = static_cast<float>(double{out[i]} / sum);
  }
  return max_score + std::log(sum);
}

}  // namespace

absl::Status PagedAttention(const ExecContext&, const PagedAttentionParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const DensePageLayout& layout = params.pages.layout;
  const int64_t group = params.heads / std::max(layout.kv_heads, 1);
  for (int64_t s = 0; s < params.num_sequences; ++s) {
    const SequenceRows& sequence = params.sequences[s];
    for (int64_t row = sequence.row_begin; row < sequence.row_begin + sequence.row_count; ++row) {
      const int32_t position = params.positions[row];
      const int32_t last = std::min(position, sequence.key_end - 1);
      const int32_t first = std::max(
          sequence.key_begin, params.sliding_window > 0 ? position - params.sliding_window + 1 : 0);
      for (int64_t head = 0; head < params.heads; ++head) {
        const PagedHead kv(params.pages, sequence.page_table, static_cast<int32_t>(head / group));
        float* lse = params.lse == nullptr ? nullptr : params.lse + row * params.heads + head;
        const double total =
            AttendOneQuery(kv,
                           Floats(params.q) + row * params.q_stride + head * layout.head_dim,
                           first,
                           last,
                           layout.head_dim,
                           params.scale,
                           params.merge ? double{*lse} : -INFINITY,
                           Floats(params.out) + row * params.out_stride + head * layout.head_dim);
        if (lse != nullptr) *lse = static_cast<float>(total);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
