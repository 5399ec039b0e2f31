// A sequence that is kept and goes on with more prompt tokens.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/diffkv/diffkv_codec.h"
#include "common/kv/codec/diffkv/diffkv_sequence.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "common/kv/codec/working_attention.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/op_table.h"

namespace baton::kv {
namespace {

// Scratch of one attention call over several queries of a sequence, which bounds their number.
constexpr int64_t kScratchFloats = int64_t{1} << 20;

}  // namespace

void DiffKvSequence::GiveBackUnused(int64_t count) {
  const auto first = lease_ids_.end() - static_cast<ptrdiff_t>(count);
  std::vector<PageId> given_back(first, lease_ids_.end());
  lease_ids_.erase(first, lease_ids_.end());
  codec_.pool().ReleaseAll(given_back);
  lease_limited_ = lease_limited_ && given_back.empty();
  std::sort(given_back.begin(), given_back.end());
  std::erase_if(owned_, [&](PageId id) {
    return std::binary_search(given_back.begin(), given_back.end(), id);
  });
  PointLease();
}

bool DiffKvSequence::SetUnused(int64_t count) {
  const int64_t unused = lease_.count - lease_.used;
  if (count <= unused) {
    GiveBackUnused(unused - count);
    return true;
  }
  const auto more = codec_.pool().Allocate(count - unused);
  if (!more.has_value()) {
    return false;
  }
  owned_.insert(owned_.end(), more->begin(), more->end());
  lease_ids_.insert(lease_ids_.end(), more->begin(), more->end());
  lease_ids_.erase(lease_ids_.begin(), lease_ids_.begin() + lease_.used);
  lease_.used = 0;
  PointLease();
  return true;
}

// High pages stay in the first columns, low pages in the last.
void DiffKvSequence::SetColumns(int32_t columns) {
  const auto tables = static_cast<size_t>(layers_) * static_cast<size_t>(kv_heads_);
  const auto width = static_cast<size_t>(columns);
  std::vector<PageId> page_table(tables * width, kNoPage);
  for (size_t table = 0; table < tables; ++table) {
    const int32_t* counts = token_counts_.data() + table * kernels::kDiffKvTiers;
    const auto high = static_cast<ptrdiff_t>(
        codec_.geometry().pages_for(kernels::kDiffKvHigh, counts[kernels::kDiffKvHigh]));
    const auto low = static_cast<ptrdiff_t>(
        codec_.geometry().pages_for(kernels::kDiffKvLow, counts[kernels::kDiffKvLow]));
    BATON_CHECK(high + low <= columns);
    const PageId* held = page_table_.data() + table * static_cast<size_t>(columns_);
    PageId* target = page_table.data() + table * width;
    std::copy_n(held, high, target);
    std::copy_n(held + columns_ - low, low, target + columns - low);
  }
  page_table_ = std::move(page_table);
  columns_ = columns;
}

bool DiffKvSequence::Extend(int64_t prompt_tokens, int64_t max_tokens) {
  const int64_t begin = held_.tokens();
  BATON_CHECK(prompt_tokens > begin);
  // Every new token high, and a page per tier and head, whatever room the last pages have.
  const DiffKvPagePlan plan =
      PlanDiffKvPages(codec_.geometry(), layers_, prompt_tokens - begin, max_tokens);
  if (!SetUnused(plan.pages())) {
    return false;
  }
  ForgetPrompt();
  plan_ = plan;
  prompt_tokens_ = prompt_tokens;
  max_tokens_ = max_tokens;
  extension_begin_ = begin;
  held_.Await(prompt_tokens);
  SetColumns(codec_.geometry().columns_for(prompt_tokens + max_tokens));
  probabilities_.resize(static_cast<size_t>(kv_heads_) * static_cast<size_t>(probability_stride()));
  const kernels::UnobservedRange unobserved = {.begin = static_cast<int32_t>(begin),
                                               .end = static_cast<int32_t>(first_observed())};
  unobserved_.back().end = std::min(unobserved_.back().end, unobserved.begin);
  if (unobserved.begin < unobserved.end) {
    unobserved_.push_back(unobserved);
  }
  AddUnobservedGenerated();
  return true;
}

void DiffKvSequence::Shrink() {
  GiveBackUnused(lease_.count - lease_.used);
  plan_.growth_pages_per_layer = 0;
  max_tokens_ = 0;
  SetColumns(codec_.geometry().columns_for(held_.tokens()));
  probabilities_ = {};
  ForgetPrompt();
}

absl::Status DiffKvSequence::AttendExtension(const WorkingKv& working,
                                             const PromptRows& rows,
                                             const KvQueries& queries) {
  const auto heads = static_cast<size_t>(queries.heads);
  std::vector<float> lse(static_cast<size_t>(rows.row_count) * heads);
  BATON_RETURN_IF_ERROR(
      AttendWorkingKeys(codec_.context(), working, rows, queries, extension_begin_, lse));
  const int32_t* end = rows.positions + rows.row_count;
  const auto silent = static_cast<int32_t>(std::lower_bound(rows.positions, end, first_observed()) -
                                           rows.positions);
  BATON_RETURN_IF_ERROR(AttendSilently(rows, queries, silent, lse));
  for (int32_t row = silent; row < rows.row_count; ++row) {
    BATON_RETURN_IF_ERROR(AttendObserved(rows, queries, row, lse));
  }
  for (int32_t row = 0; row < rows.row_count; ++row) {
    CountAttention(queries.kv_layer);
    counters_.attended_tokens += kv_heads_ * (rows.positions[row] + 1 - extension_begin_);
  }
  if (silent == rows.row_count) {
    return absl::OkStatus();
  }
  return ObserveNew(working,
                    {.row_begin = rows.row_begin + silent,
                     .row_count = rows.row_count - silent,
                     .positions = rows.positions + silent,
                     .op_positions = rows.op_positions + silent},
                    queries,
                    lse.data() + static_cast<size_t>(silent) * heads);
}

int64_t DiffKvSequence::StoredTokens(int32_t kv_layer) const {
  const std::span<const int32_t> counts = TierTokens(kv_layer);
  int64_t stored = 1;
  for (size_t i = 0; i < counts.size(); i += kernels::kDiffKvTiers) {
    stored = std::max<int64_t>(stored, int64_t{counts[i]} + counts[i + 1]);
  }
  return stored;
}

kernels::DiffKvAttentionRow DiffKvSequence::StoredAttention(const PromptRows& rows,
                                                            const KvQueries& queries,
                                                            int32_t row,
                                                            std::span<float> lse) {
  return {.layer = layer(queries.kv_layer),
          .row = rows.row_begin + row,
          .position = rows.positions[row],
          .lse = lse.data() + static_cast<ptrdiff_t>(row) * queries.heads,
          .probability_stride = StoredTokens(queries.kv_layer)};
}

absl::Status DiffKvSequence::AttendStored(std::span<const kernels::DiffKvAttentionRow> rows,
                                          const KvQueries& queries,
                                          float* scratch) {
  const CodecContext& context = codec_.context();
  return context.ops->diffkv_attention(context.exec,
                                       {.q = queries.q,
                                        .q_stride = queries.q_stride,
                                        .out = queries.out,
                                        .out_stride = queries.out_stride,
                                        .scratch = scratch,
                                        .rows = rows.data(),
                                        .num_rows = static_cast<int64_t>(rows.size()),
                                        .pages = codec_.pages(),
                                        .heads = queries.heads,
                                        .scale = queries.scale,
                                        .sliding_window = queries.sliding_window,
                                        .first = queries.first_reader,
                                        .last = queries.last_reader});
}

absl::Status DiffKvSequence::AttendSilently(const PromptRows& rows,
                                            const KvQueries& queries,
                                            int32_t count,
                                            std::span<float> lse) {
  const int64_t row_floats = kernels::DiffKvScratchFloats(
      codec_.geometry(), queries.heads, StoredTokens(queries.kv_layer));
  const auto most = static_cast<int32_t>(std::max<int64_t>(1, kScratchFloats / row_floats));
  std::vector<kernels::DiffKvAttentionRow> together;
  for (int32_t begin = 0; begin < count; begin += most) {
    const int32_t end = std::min(count, begin + most);
    BATON_ASSIGN_OR_RETURN(float* const scratch,
                           codec_.Scratch(static_cast<size_t>((end - begin) * row_floats)));
    together.clear();
    for (int32_t row = begin; row < end; ++row) {
      together.push_back(StoredAttention(rows, queries, row, lse));
      together.back().scratch_begin = (row - begin) * row_floats;
    }
    BATON_RETURN_IF_ERROR(AttendStored(together, queries, scratch));
  }
  return absl::OkStatus();
}

// One query after another, since each adds to the scores in the pages.
absl::Status DiffKvSequence::AttendObserved(const PromptRows& rows,
                                            const KvQueries& queries,
                                            int32_t row,
                                            std::span<float> lse) {
  kernels::DiffKvAttentionRow attention = StoredAttention(rows, queries, row, lse);
  BATON_ASSIGN_OR_RETURN(float* const scratch,
                         codec_.Scratch(static_cast<size_t>(kernels::DiffKvScratchFloats(
                             codec_.geometry(), queries.heads, attention.probability_stride))));
  attention.probabilities = probabilities_.data();
  if (!queries.first_reader || !queries.last_reader) {
    // Kept until the last layer that reads the cache has attended.
    const size_t row_floats =
        static_cast<size_t>(kv_heads_) * static_cast<size_t>(attention.probability_stride);
    const int64_t first = first_observed();
    const size_t needed = static_cast<size_t>(prompt_tokens_ - first) * row_floats;
    shared_stored_.resize(std::max(shared_stored_.size(), needed));
    attention.probabilities =
        shared_stored_.data() + static_cast<size_t>(attention.position - first) * row_floats;
  }
  return AttendStored({&attention, 1}, queries, scratch);
}

}  // namespace baton::kv
