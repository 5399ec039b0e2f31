// A sequence that is kept and goes on with more prompt tokens.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/diffkv/diffkv_codec.h"
#include "common/kv/codec/diffkv/diffkv_device_arrays.h"
#include "common/kv/codec/diffkv/diffkv_sequence.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "common/kv/codec/working_attention.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/memory.h"
#include "kernels/core/step_arrays.h"
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
  PagePool& pool = codec_.pool();
  const auto first = lease_ids_.end() - static_cast<ptrdiff_t>(count);
  pool.ReleaseAll({first, lease_ids_.end()});
  lease_ids_.erase(first, lease_ids_.end());
  lease_limited_ = lease_limited_ && count == 0;
  // Pages belong to one sequence, so that a given back one has no reference left. Of a long prompt
  // they are tens of thousands, and its decode waits for this.
  std::erase_if(owned_, [&](PageId id) { return pool.references(id) == 0; });
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

bool DiffKvSequence::TakeForExtension(const DiffKvPagePlan& plan,
                                      int64_t prompt_tokens,
                                      int64_t max_tokens) {
  BATON_CHECK(before_extension_ == nullptr);
  const int64_t new_tokens = prompt_tokens - held_.tokens();
  const int64_t observed = settings_.policy.scoring == kernels::DiffKvScoring::kAllLater
                               ? new_tokens
                               : std::min<int64_t>(new_tokens, kernels::kDiffKvWindowQueries);
  const int64_t stride = prompt_tokens + max_tokens;
  auto arrays = DiffKvDeviceArrays::Allocate(
      codec_.blocks(),
      {.layers = layers_,
       .kv_heads = kv_heads_,
       .columns = codec_.geometry().columns_for(stride),
       .lease_ids = static_cast<int64_t>(lease_ids_.size()) + plan.pages(),
       .prompt_tokens = new_tokens,
       .probability_stride = stride,
       .unobserved = static_cast<int64_t>(unobserved_.size()) + 2,
       .row_lses = new_tokens * codec_.context().heads,
       .stored_probabilities = codec_.context().shares_layers ? observed * kv_heads_ * stride : 0});
  if (!arrays.ok()) {
    return false;
  }
  const auto more = codec_.pool().Allocate(plan.pages());
  if (!more.has_value()) {
    return false;
  }
  owned_.insert(owned_.end(), more->begin(), more->end());
  lease_ids_.insert(lease_ids_.end(), more->begin(), more->end());
  PointLease();
  before_extension_ = std::exchange(device_, *std::move(arrays));
  return true;
}

bool DiffKvSequence::Extend(int64_t prompt_tokens, int64_t max_tokens) {
  const int64_t begin = held_.tokens();
  BATON_CHECK(prompt_tokens > begin);
  ForgetPrompt();
  // Every new token high, and a page per tier and head, whatever room the last pages have.
  const DiffKvPagePlan plan =
      PlanDiffKvPages(codec_.geometry(), layers_, prompt_tokens - begin, max_tokens);
  if (!(device_ == nullptr ? SetUnused(plan.pages())
                           : TakeForExtension(plan, prompt_tokens, max_tokens))) {
    return false;
  }
  plan_ = plan;
  prompt_tokens_ = prompt_tokens;
  max_tokens_ = max_tokens;
  extension_begin_ = begin;
  held_.Await(prompt_tokens);
  const kernels::UnobservedRange unobserved = {.begin = static_cast<int32_t>(begin),
                                               .end = static_cast<int32_t>(first_observed())};
  unobserved_.back().end = std::min(unobserved_.back().end, unobserved.begin);
  if (unobserved.begin < unobserved.end) {
    unobserved_.push_back(unobserved);
  }
  AddUnobservedGenerated();
  if (device_ == nullptr) {
    SetColumns(codec_.geometry().columns_for(prompt_tokens + max_tokens));
    probabilities_.resize(static_cast<size_t>(kv_heads_) *
                          static_cast<size_t>(probability_stride()));
    row_lses_.resize(static_cast<size_t>(new_tokens() * codec_.context().heads));
  }
  return true;
}

absl::Status DiffKvSequence::TakeOver() {
  const std::unique_ptr<DiffKvDeviceArrays> before = std::move(before_extension_);
  const int32_t columns = codec_.geometry().columns_for(prompt_tokens_ + max_tokens_);
  if (!filled_) {  // it has landed, and no step has referred to it
    columns_ = columns;
    return absl::OkStatus();
  }
  kernels::MemorySpace& space = *codec_.context().exec.memory;
  BATON_RETURN_IF_ERROR(before->Fetch(space, token_counts_, lease_.used));
  BATON_ASSIGN_OR_RETURN(page_table_, before->FetchPageTable(space));
  SetColumns(columns);
  lease_ids_.erase(lease_ids_.begin(), lease_ids_.begin() + lease_.used);
  lease_.used = 0;
  PointLease();
  BATON_RETURN_IF_ERROR(
      device_->Fill(space, token_counts_, lease_ids_, unobserved_, std::exchange(page_table_, {})));
  lease_limited_ = true;
  fetched_tokens_ = held_.tokens();
  return absl::OkStatus();
}

void DiffKvSequence::Shrink() {
  ForgetPrompt();
  if (device_ != nullptr) {
    return;
  }
  GiveBackUnused(lease_.count - lease_.used);
  plan_.growth_pages_per_layer = 0;
  max_tokens_ = 0;
  SetColumns(codec_.geometry().columns_for(held_.tokens()));
  probabilities_ = {};
}

int64_t DiffKvSequence::StoredTokens(int32_t kv_layer) const {
  const std::span<const int32_t> counts = TierTokens(kv_layer);
  int64_t stored = 1;
  for (size_t i = 0; i < counts.size(); i += kernels::kDiffKvTiers) {
    stored = std::max<int64_t>(stored, int64_t{counts[i]} + counts[i + 1]);
  }
  return stored;
}

float* DiffKvSequence::RowLse(int64_t position) {
  float* const first = device_ == nullptr ? row_lses_.data() : device_->row_lses();
  return first + (position - extension_begin_) * codec_.context().heads;
}

// Bounds the scratch of one attention call.
int32_t DiffKvSequence::SilentRowsAtOnce(int32_t kv_layer) const {
  return static_cast<int32_t>(std::max<int64_t>(1, kScratchFloats / RowFloats(kv_layer)));
}

int64_t DiffKvSequence::RowFloats(int32_t kv_layer) const {
  return kernels::DiffKvScratchFloats(
      codec_.geometry(), codec_.context().heads, StoredTokens(kv_layer));
}

float* DiffKvSequence::StoredProbabilities() {
  if (device_ != nullptr) {
    return device_->stored_probabilities();
  }
  int64_t stored = 0;
  for (int32_t kv_layer = 0; kv_layer < layers_; ++kv_layer) {
    stored = std::max(stored, StoredTokens(kv_layer));
  }
  const int64_t floats = (prompt_tokens_ - first_observed()) * kv_heads_ * stored;
  stored_probabilities_.resize(std::max(stored_probabilities_.size(), static_cast<size_t>(floats)));
  return stored_probabilities_.data();
}

void DiffKvSequence::AddLayer(const PromptRows& rows,
                              int32_t kv_layer,
                              float* stored_probabilities,
                              ExtensionTile& tile) {
  const int32_t at_once = SilentRowsAtOnce(kv_layer);
  const int64_t row_floats = RowFloats(kv_layer);
  const int64_t stride = StoredTokens(kv_layer);
  for (int32_t row = 0; row < rows.row_count; ++row) {
    const int32_t position = rows.positions[row];
    kernels::DiffKvAttentionRow stored = {.layer = layer(kv_layer),
                                          .row = rows.row_begin + row,
                                          .position = position,
                                          .lse = RowLse(position),
                                          .probability_stride = stride};
    if (row < tile.silent) {
      stored.scratch_begin = (row % at_once) * row_floats;
    } else {
      stored.probabilities = probabilities();
    }
    tile.stored.push_back(stored);
    if (row >= tile.silent && stored_probabilities != nullptr) {
      stored.probabilities =
          stored_probabilities + (position - first_observed()) * kv_heads_ * stride;
      tile.shared.push_back(stored);
    }
  }
}

absl::Status DiffKvSequence::PrepareExtension(const WorkingKv& working,
                                              const PromptRows& rows,
                                              kernels::StepArrays& arrays) {
  if (extension_tiles_.empty()) {
    held_counts_ = token_counts_;
    op_held_counts_ = arrays.Add(held_counts_);
  }
  ExtensionTile& tile = extension_tiles_.emplace_back();
  const int32_t* const end = rows.positions + rows.row_count;
  tile.rows = rows;
  tile.silent = static_cast<int32_t>(std::lower_bound(rows.positions, end, first_observed()) -
                                     rows.positions);
  tile.working = WorkingRows(working, rows, extension_begin_);
  float* const stored = codec_.context().shares_layers ? StoredProbabilities() : nullptr;
  for (int32_t kv_layer = 0; kv_layer < layers_; ++kv_layer) {
    AddLayer(rows, kv_layer, stored, tile);
  }
  tile.op_working = arrays.Add(tile.working);
  tile.op_stored = arrays.Add(tile.stored);
  tile.op_shared = arrays.Add(tile.shared);
  return absl::OkStatus();
}

absl::Status DiffKvSequence::AttendExtension(const WorkingKv& working,
                                             const PromptRows& rows,
                                             const KvQueries& queries) {
  const auto tile = std::ranges::find_if(
      extension_tiles_, [&](const ExtensionTile& candidate) { return candidate.rows.Same(rows); });
  BATON_CHECK(tile != extension_tiles_.end());
  BATON_RETURN_IF_ERROR(AttendDenseKeys(codec_.context(),
                                        working.pages,
                                        rows,
                                        queries,
                                        tile->op_working + queries.kv_layer,
                                        RowLse(rows.positions[0])));
  BATON_RETURN_IF_ERROR(AttendSilently(*tile, queries));
  BATON_RETURN_IF_ERROR(AttendObserved(*tile, queries));
  for (int32_t row = 0; row < rows.row_count; ++row) {
    CountAttention(queries.kv_layer);
    counters_.attended_tokens += kv_heads_ * (rows.positions[row] + 1 - extension_begin_);
  }
  const int32_t silent = tile->silent;
  if (silent == rows.row_count) {
    return absl::OkStatus();
  }
  return ObserveNew(working,
                    {.row_begin = rows.row_begin + silent,
                     .row_count = rows.row_count - silent,
                     .positions = rows.positions + silent,
                     .op_positions = rows.op_positions + silent},
                    queries,
                    RowLse(rows.positions[silent]));
}

absl::Status DiffKvSequence::AttendStored(const kernels::DiffKvAttentionRow* op_rows,
                                          int64_t count,
                                          const KvQueries& queries,
                                          bool scored) {
  BATON_ASSIGN_OR_RETURN(float* const scratch,
                         codec_.Scratch(static_cast<size_t>(count * RowFloats(queries.kv_layer))));
  const CodecContext& context = codec_.context();
  return context.ops->diffkv_attention(context.exec,
                                       {.q = queries.q,
                                        .q_stride = queries.q_stride,
                                        .out = queries.out,
                                        .out_stride = queries.out_stride,
                                        .scratch = scratch,
                                        .rows = op_rows,
                                        .num_rows = count,
                                        .pages = codec_.pages(),
                                        .heads = queries.heads,
                                        .scale = queries.scale,
                                        .sliding_window = queries.sliding_window,
                                        .first = queries.first_reader,
                                        .last = queries.last_reader,
                                        .scored = scored});
}

absl::Status DiffKvSequence::AttendSilently(const ExtensionTile& tile, const KvQueries& queries) {
  const int32_t at_once = SilentRowsAtOnce(queries.kv_layer);
  const kernels::DiffKvAttentionRow* const rows =
      tile.op_stored + int64_t{queries.kv_layer} * tile.rows.row_count;
  for (int32_t begin = 0; begin < tile.silent; begin += at_once) {
    const int32_t count = std::min(at_once, tile.silent - begin);
    BATON_RETURN_IF_ERROR(AttendStored(rows + begin, count, queries, /*scored=*/false));
  }
  return absl::OkStatus();
}

// One query after another, since each adds to the scores in the pages. What layers that share a
// cache found is kept until the last of them has attended.
absl::Status DiffKvSequence::AttendObserved(const ExtensionTile& tile, const KvQueries& queries) {
  const int32_t observed = tile.rows.row_count - tile.silent;
  const kernels::DiffKvAttentionRow* const rows =
      queries.first_reader && queries.last_reader
          ? tile.op_stored + int64_t{queries.kv_layer} * tile.rows.row_count + tile.silent
          : tile.op_shared + int64_t{queries.kv_layer} * observed;
  for (int32_t row = 0; row < observed; ++row) {
    BATON_RETURN_IF_ERROR(AttendStored(rows + row, 1, queries, /*scored=*/true));
  }
  return absl::OkStatus();
}

}  // namespace baton::kv
