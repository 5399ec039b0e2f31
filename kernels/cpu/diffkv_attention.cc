// Work sharing and paging of attention over quantized pages; the arithmetic is in quant_*_inl.h.
//
// A head's pages (high, then low) are cut into splits of kDiffKvSplitPages pages. First every split
// computes its scores and its share of the softmax, then every split reads what all splits of its
// head found, and gives its tokens their probabilities.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cpu/attention_lines.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/workspace.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

// The maximum before any key: finite, so that differences stay defined.
constexpr float kNoScoreYet = -1e30f;

// Some pages of one tier of one head.
struct PageRun {
  int32_t tier;
  int32_t begin;
  int32_t end;
};

// One split of one KV head of one row, and where its results go.
class Split {
 public:
  Split(const DiffKvAttentionParams& params, int64_t row, int32_t kv_head, int32_t split)
      : params_(params),
        row_(params.rows[row]),
        geometry_(params.pages.geometry),
        kv_head_(kv_head),
        split_(split),
        group_(params.heads / geometry_.kv_heads) {
    for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
      counts_[tier] = DiffKvCount(row_.layer, kv_head, tier);
      pages_[tier] = geometry_.pages_for(tier, counts_[tier]);
    }
  }

  const DiffKvAttentionRow& row() const { return row_; }
  int64_t first_head() const { return kv_head_ * group_; }
  int64_t group() const { return group_; }
  int32_t index() const { return split_; }
  // Splits of this head; at least one.
  int32_t splits() const {
    const int32_t pages = pages_[kDiffKvHigh] + pages_[kDiffKvLow];
    return std::max((pages + kDiffKvSplitPages - 1) / kDiffKvSplitPages, 1);
  }
  PageRun run(int32_t tier) const {
    const int32_t before = tier == kDiffKvHigh ? 0 : pages_[kDiffKvHigh];
    const int32_t begin = split_ * kDiffKvSplitPages - before;
    return {.tier = tier,
            .begin = std::clamp(begin, 0, pages_[tier]),
            .end = std::clamp(begin + kDiffKvSplitPages, 0, pages_[tier])};
  }
  // Slot of a page's first token among the head's tokens, high before low.
  int64_t FirstToken(int32_t tier, int32_t page) const {
    const int64_t before = tier == kDiffKvHigh ? 0 : counts_[kDiffKvHigh];
    return before +
           std::min<int64_t>(int64_t{page} * geometry_.layout(tier).page_tokens(), counts_[tier]);
  }
  std::byte* page_data(int32_t tier, int32_t page) const {
    return DiffKvPageData(params_.pages, row_.layer, kv_head_, tier, page);
  }
  const float* q(int64_t head) const {
    return Floats(params_.q) + row_.row * params_.q_stride + head * geometry_.head_dim;
  }
  float* out(int64_t head) const {
    return Floats(params_.out) + row_.row * params_.out_stride + head * geometry_.head_dim;
  }
  // Scores of one query head, by slot.
  float* scores(int64_t head) const { return scratch() + head * row_.probability_stride; }
  // What one split found for one query head: maximum, sum of weights, weighted values [head_dim].
  float* partial(int64_t head, int32_t split) const {
    const int64_t most = (geometry_.columns_for(row_.probability_stride) + kDiffKvSplitPages - 1) /
                         kDiffKvSplitPages;
    return scratch() + params_.heads * row_.probability_stride +
           (head * most + split) * (geometry_.head_dim + 2);
  }
  float* probabilities() const { return row_.probabilities + kv_head_ * row_.probability_stride; }

  QuantPage Page(int32_t tier, int32_t page, int64_t head) const {
    const DiffKvPageLayout layout = geometry_.layout(tier);
    const std::byte* data = page_data(tier, page);
    const int64_t first = FirstToken(tier, page);
    return {.key_codes = data + layout.key_codes(),
            .key_ranges = data + layout.key_scales(),
            .value_codes = data + layout.value_codes(),
            .value_ranges = data + layout.value_scales(),
            .positions = reinterpret_cast<const int32_t*>(data + layout.positions()),
            .key_bits = layout.tier.key_bits,
            .value_bits = layout.tier.value_bits,
            .key_unit_bytes = layout.key_unit_bytes(),
            .value_lane_words = layout.value_lane_words(),
            .page_tokens = layout.page_tokens(),
            .tokens = static_cast<int32_t>(FirstToken(tier, page + 1) - first),
            .oldest =
                params_.sliding_window > 0 ? row_.position - params_.sliding_window + 1 : INT32_MIN,
            .scores = scores(head) + first,
            .score_stride = row_.probability_stride};
  }

 private:
  float* scratch() const { return params_.scratch + row_.scratch_begin; }

  const DiffKvAttentionParams& params_;
  const DiffKvAttentionRow& row_;
  const DiffKvGeometry& geometry_;
  int32_t kv_head_;
  int32_t split_;
  int64_t group_;
  int32_t counts_[kDiffKvTiers];
  int32_t pages_[kDiffKvTiers];
};

// Query heads [head, head + count), scaled to base 2, in the order of the tier's key codes.
void OrderQueries(
    const DiffKvPageLayout& layout, const float* q, int64_t count, float scale, float* ordered) {
  const size_t row_bits = size_t{32} * static_cast<size_t>(layout.key_unit_bytes());
  const size_t unit_bits = row_bits * static_cast<size_t>(layout.page_tokens());
  const auto bits = static_cast<size_t>(layout.tier.key_bits);
  for (int32_t dim = 0; dim < layout.head_dim; ++dim) {
    const size_t bit = layout.key_bit(0, dim);
    const size_t index = (bit / unit_bits * row_bits + bit % unit_bits) / bits;
    for (int64_t h = 0; h < count; ++h) {
      ordered[static_cast<int64_t>(index) * count + h] = q[h * layout.head_dim + dim] * scale;
    }
  }
}

void SumQueries(const float* q, int64_t count, int32_t head_dim, float scale, float* sums) {
  for (int64_t h = 0; h < count; ++h) {
    double sum = 0.0;
    for (int32_t dim = 0; dim < head_dim; ++dim) {
      sum += double{q[h * head_dim + dim] * scale};
    }
    sums[h] = static_cast<float>(sum);
  }
}

// out[dim] += the head's weighted codes of `dim`, which lie in four lanes of its word's run.
void GatherValues(const QuantHeads& heads,
                  const DiffKvPageLayout& layout,
                  int64_t head,
                  float* out) {
  const int32_t bits = layout.tier.value_bits;
  const int32_t block_bits = bits * layout.value_tile_tokens() / 8;
  const int32_t blocks = 16 / block_bits;
  const int32_t lane_words = layout.value_lane_words();
  for (int32_t dim = 0; dim < layout.head_dim; ++dim) {
    const auto bit = static_cast<int32_t>(layout.value_bit(0, dim));
    const int32_t word = bit / 32;
    const int64_t block = int64_t{word / 16} * blocks + bit % 32 / block_bits;
    const float* lanes = heads.values + (block * heads.heads + head) * 16 + word % 16;
    out[dim] += (lanes[0] + lanes[2 * lane_words]) + (lanes[lane_words] + lanes[3 * lane_words]);
  }
}

// The split's share of up to isa.quant_heads query heads from `head` on.
void AttendHeads(const IsaKernels& isa,
                 const DiffKvAttentionParams& params,
                 const Split& split,
                 int64_t head,
                 QuantScratch& scratch) {
  const DiffKvGeometry& geometry = params.pages.geometry;
  QuantHeads& heads = scratch.heads;
  // Scores in base 2: 2^(score * log2 e) = e^score.
  const float scale = params.scale * kLog2E;
  const float* q = split.q(head);
  SumQueries(q, heads.heads, geometry.head_dim, scale, scratch.q_sums);
  std::fill(heads.max, heads.max + heads.heads, kNoScoreYet);
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    const PageRun run = split.run(tier);
    if (run.begin == run.end) continue;
    OrderQueries(geometry.layout(tier), q, heads.heads, scale, scratch.q[tier]);
    heads.q = scratch.q[tier];
    for (int32_t page = run.begin; page < run.end; ++page) {
      isa.quant_scores(heads, split.Page(tier, page, head));
    }
  }
  std::fill(heads.sums, heads.sums + 16 * heads.heads, 0.0f);
  std::fill(heads.zero_sums, heads.zero_sums + 16 * heads.heads, 0.0f);
  for (int64_t h = 0; h < heads.heads; ++h) {
    float* values = split.partial(head + h, split.index()) + 2;
    std::fill(values, values + geometry.head_dim, 0.0f);
  }
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    const PageRun run = split.run(tier);
    if (run.begin == run.end) continue;
    std::fill(heads.values, heads.values + 4 * geometry.head_dim * heads.heads, 0.0f);
    for (int32_t page = run.begin; page < run.end; ++page) {
      isa.quant_values(heads, split.Page(tier, page, head));
    }
    for (int64_t h = 0; h < heads.heads; ++h) {
      float* values = split.partial(head + h, split.index()) + 2;
      GatherValues(heads, geometry.layout(tier), h, values);
    }
  }
  for (int64_t h = 0; h < heads.heads; ++h) {
    float* partial = split.partial(head + h, split.index());
    float zero_sum = 0.0f;
    partial[0] = heads.max[h];
    partial[1] = 0.0f;
    for (int64_t lane = 0; lane < 16; ++lane) {
      partial[1] += heads.sums[h * 16 + lane];
      zero_sum += heads.zero_sums[h * 16 + lane];
    }
    for (int32_t dim = 0; dim < geometry.head_dim; ++dim) {
      partial[2 + dim] += zero_sum;
    }
  }
}

// Softmax over all splits of one query head, and over the other keys that the row has seen.
struct HeadTotal {
  float max = kNoScoreYet;
  double sum = 0.0;     // of the weights relative to max
  double others = 0.0;  // the other keys' share of it
  double factor = 0.0;  // 1 / sum
};

HeadTotal TotalOf(const Split& split, int64_t head) {
  HeadTotal total;
  const float others = split.row().lse == nullptr ? -std::numeric_limits<float>::infinity()
                                                  : split.row().lse[head] * kLog2E;
  total.max = std::max(total.max, others);
  for (int32_t s = 0; s < split.splits(); ++s) {
    total.max = std::max(total.max, split.partial(head, s)[0]);
  }
  total.others = std::exp2(double{others} - double{total.max});
  total.sum = total.others;
  for (int32_t s = 0; s < split.splits(); ++s) {
    const float* partial = split.partial(head, s);
    total.sum += double{partial[1]} * std::exp2(double{partial[0]} - double{total.max});
  }
  total.factor = total.sum > 0.0 ? 1.0 / total.sum : 0.0;
  return total;
}

void WriteOutput(const Split& split, int64_t head, int32_t head_dim, const HeadTotal& total) {
  float* out = split.out(head);
  const auto others = static_cast<float>(total.others * total.factor);
  for (int32_t dim = 0; dim < head_dim; ++dim) {
    out[dim] = others > 0.0f ? out[dim] * others : 0.0f;
  }
  for (int32_t s = 0; s < split.splits(); ++s) {
    const float* partial = split.partial(head, s);
    const auto factor =
        static_cast<float>(std::exp2(double{partial[0]} - double{total.max}) * total.factor);
    for (int32_t dim = 0; dim < head_dim; ++dim) {
      out[dim] += partial[2 + dim] * factor;
    }
  }
}

void AddToPageScores(const DiffKvGeometry& geometry, const Split& split) {
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    const PageRun run = split.run(tier);
    for (int32_t page = run.begin; page < run.end; ++page) {
      const int64_t first = split.FirstToken(tier, page);
      const int64_t tokens = split.FirstToken(tier, page + 1) - first;
      auto* scores =
          reinterpret_cast<float*>(split.page_data(tier, page) + geometry.layout(tier).scores());
      const float* probabilities = split.probabilities() + first;
      for (int64_t i = 0; i < tokens; ++i) {
        scores[i] += probabilities[i];
      }
    }
  }
}

// The row's log-sum-exps, once no split needs those of the other keys any more.
void WriteLse(const DiffKvAttentionParams& params, int64_t row) {
  float* lse = params.rows[row].lse;
  for (int64_t head = 0; lse != nullptr && head < params.heads; ++head) {
    const int64_t group = params.heads / params.pages.geometry.kv_heads;
    const HeadTotal total =
        TotalOf(Split(params, row, static_cast<int32_t>(head / group), 0), head);
    lse[head] = total.sum > 0.0
                    ? static_cast<float>((double{total.max} + std::log2(total.sum)) * kLn2)
                    : -std::numeric_limits<float>::infinity();
  }
}

// Outputs (by a head's first split) and the probabilities of the split's tokens.
void FinishSplit(const IsaKernels& isa,
                 const DiffKvAttentionParams& params,
                 const Split& split,
                 QuantScratch& scratch) {
  const DiffKvGeometry& geometry = params.pages.geometry;
  const PageRun high = split.run(kDiffKvHigh);
  const PageRun low = split.run(kDiffKvLow);
  const int64_t begin = high.begin < high.end ? split.FirstToken(kDiffKvHigh, high.begin)
                                              : split.FirstToken(kDiffKvLow, low.begin);
  const int64_t end = low.begin < low.end ? split.FirstToken(kDiffKvLow, low.end)
                                          : split.FirstToken(kDiffKvHigh, high.end);
  for (int64_t g = 0; g < split.group(); g += isa.quant_heads) {
    const int64_t count = std::min<int64_t>(isa.quant_heads, split.group() - g);
    const int64_t head = split.first_head() + g;
    for (int64_t h = 0; h < count; ++h) {
      const HeadTotal total = TotalOf(split, head + h);
      scratch.heads.max[h] = total.max;
      scratch.factors[h] = static_cast<float>(total.factor);
      if (split.index() == 0) {
        WriteOutput(split, head + h, geometry.head_dim, total);
      }
    }
    if (begin < end && split.row().probabilities != nullptr) {
      isa.quant_probabilities(split.scores(head) + begin,
                              split.row().probability_stride,
                              count,
                              end - begin,
                              scratch.heads.max,
                              scratch.factors,
                              !params.first || g > 0,
                              split.probabilities() + begin);
    }
  }
  if (params.last && split.row().probabilities != nullptr) {
    AddToPageScores(geometry, split);
  }
}

// fn(split, scratch) for every split of every head of every row.
template <typename Function>
void ForSplits(const IsaKernels& isa,
               const ExecContext& context,
               const DiffKvAttentionParams& params,
               const Function& fn) {
  const DiffKvGeometry& geometry = params.pages.geometry;
  const size_t slice_bytes = QuantScratchBytes(isa, geometry.head_dim);
  int32_t most = 1;
  int64_t tokens = 0;
  for (int64_t r = 0; r < params.num_rows; ++r) {
    for (int32_t head = 0; head < geometry.kv_heads; ++head) {
      most = std::max(most, Split(params, r, head, 0).splits());
      for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
        tokens += DiffKvCount(params.rows[r].layer, head, tier);
      }
    }
  }
  const bool serial = tokens * geometry.head_dim < kSerialElements;
  const int64_t kv_heads = geometry.kv_heads;
  ParallelFor(context, params.num_rows * kv_heads * most, serial, [&](int64_t index, int thread) {
    const Split split(params,
                      index / most / kv_heads,
                      static_cast<int32_t>(index / most % kv_heads),
                      static_cast<int32_t>(index % most));
    if (split.index() < split.splits()) {
      QuantScratch scratch =
          CarveQuant(isa,
                     geometry.head_dim,
                     context.workspace->data() + static_cast<size_t>(thread) * slice_bytes);
      fn(split, scratch);
    }
  });
}

}  // namespace

absl::Status DiffKvAttention(const IsaKernels& isa,
                             const ExecContext& context,
                             const DiffKvAttentionParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  if (params.num_rows == 0) {
    return absl::OkStatus();
  }
  const size_t slice_bytes = QuantScratchBytes(isa, params.pages.geometry.head_dim);
  if (absl::Status status = CheckWorkspace("diffkv_attention", context, slice_bytes);
      !status.ok()) {
    return status;
  }
  ForSplits(isa, context, params, [&](const Split& split, QuantScratch& scratch) {
    for (int64_t g = 0; g < split.group(); g += isa.quant_heads) {
      scratch.heads.heads = std::min<int64_t>(isa.quant_heads, split.group() - g);
      AttendHeads(isa, params, split, split.first_head() + g, scratch);
    }
  });
  ForSplits(isa, context, params, [&](const Split& split, QuantScratch& scratch) {
    FinishSplit(isa, params, split, scratch);
  });
  for (int64_t row = 0; row < params.num_rows; ++row) {
    WriteLse(params, row);
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
