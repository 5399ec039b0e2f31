#include "tests/kernels/support/paged_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {

PagedProblem::PagedProblem(const OpTable& ops,
                           const ExecContext& context,
                           const PagedShape& shape,
                           std::vector<int32_t> lengths)
    : shape_(shape), lengths_(std::move(lengths)) {
  const DensePageLayout& layout = shape_.layout;
  max_pages_ = layout.pages_for(*std::max_element(lengths_.begin(), lengths_.end()));
  page_table_.resize(static_cast<size_t>(max_pages_) * lengths_.size());
  std::iota(page_table_.begin(), page_table_.end(), 0);
  std::mt19937 random(TestSeed());
  std::shuffle(page_table_.begin(), page_table_.end(), random);
  pages_ = Buffer(layout.stride_bytes() * page_table_.size());
  std::memset(pages_.data(), 0xff, pages_.size());
  const int64_t width = int64_t{layout.kv_heads} * layout.head_dim;
  for (size_t s = 0; s < lengths_.size(); ++s) {
    const auto rows = static_cast<size_t>(lengths_[s]);
    queries_.push_back(RandomFloats(rows * static_cast<size_t>(row_elements()), 2.0f));
    const std::vector<float> k = RandomFloats(rows * static_cast<size_t>(width));
    const std::vector<float> v = RandomFloats(rows * static_cast<size_t>(width));
    std::vector<int32_t> positions(rows);
    std::iota(positions.begin(), positions.end(), 0);
    const SequenceRows sequence = {
        .row_begin = 0, .row_count = lengths_[s], .page_table = PageTable(static_cast<int>(s))};
    const absl::Status status = ops.kv_write(context,
                                             {.k = k.data(),
                                              .k_stride = width,
                                              .v = v.data(),
                                              .v_stride = width,
                                              .positions = positions.data(),
                                              .sequences = &sequence,
                                              .num_sequences = 1,
                                              .pages = {.base = pages_.data(), .layout = layout}});
    EXPECT_TRUE(status.ok()) << status;
  }
}

const int32_t* PagedProblem::PageTable(int sequence) const {
  return page_table_.data() + static_cast<int64_t>(sequence) * max_pages_;
}

void PagedProblem::Hide(Buffer& pages, int sequence, int32_t begin, int32_t end) const {
  const DensePageLayout& layout = shape_.layout;
  const size_t bytes = static_cast<size_t>(layout.head_dim) * DTypeBytes(layout.dtype);
  for (int32_t token = begin; token < end; ++token) {
    const auto id = static_cast<size_t>(PageTable(sequence)[token / layout.page_tokens]);
    std::byte* page = pages.data() + id * layout.stride_bytes();
    const int32_t slot = token % layout.page_tokens;
    for (int32_t head = 0; head < layout.kv_heads; ++head) {
      std::memset(page + layout.key_offset(head, slot), 0xff, bytes);
      std::memset(page + layout.value_offset(head, slot), 0xff, bytes);
      if (layout.has_scales()) {
        std::memset(page + layout.key_scale_offset(head, slot), 0xff, 4);
        std::memset(page + layout.value_scale_offset(head, slot), 0xff, 4);
      }
    }
  }
}

PagedAttentionParams PagedProblem::Params(std::span<const RowRange> ranges,
                                          std::vector<float>& q,
                                          std::vector<int32_t>& positions,
                                          std::vector<SequenceRows>& sequences) const {
  for (const RowRange& range : ranges) {
    const std::vector<float>& source = queries_[static_cast<size_t>(range.sequence)];
    const auto begin = source.begin() + range.first * row_elements();
    q.insert(q.end(), begin, begin + range.count * row_elements());
    sequences.push_back({.row_begin = static_cast<int32_t>(positions.size()),
                         .row_count = range.count,
                         .page_table = PageTable(range.sequence)});
    for (int32_t i = 0; i < range.count; ++i) {
      positions.push_back(range.first + i);
    }
  }
  return {.q = q.data(),
          .q_stride = row_elements(),
          .positions = positions.data(),
          .sequences = sequences.data(),
          .num_sequences = static_cast<int64_t>(sequences.size()),
          .pages = {.base = nullptr, .layout = shape_.layout},
          .heads = shape_.heads,
          .scale = 1.0f / std::sqrt(static_cast<float>(shape_.layout.head_dim)),
          .sliding_window = shape_.sliding_window,
          .out = nullptr,
          .out_stride = row_elements()};
}

std::vector<float> PagedProblem::Attend(const OpTable& ops,
                                        const ExecContext& context,
                                        std::span<const RowRange> ranges) const {
  Buffer pages(pages_.size());
  std::memcpy(pages.data(), pages_.data(), pages.size());
  for (const RowRange& range : ranges) {
    // Keys that a real step would not have written yet.
    Hide(pages, range.sequence, range.first + range.count, length(range.sequence));
  }
  std::vector<float> q;
  std::vector<int32_t> positions;
  std::vector<SequenceRows> sequences;
  PagedAttentionParams params = Params(ranges, q, positions, sequences);
  std::vector<float> out(q.size(), NAN);
  params.pages.base = pages.data();
  params.out = out.data();
  const absl::Status status = ops.paged_attention(context, params);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

void PagedProblem::AttendKeys(const OpTable& ops,
                              const ExecContext& context,
                              std::span<const RowRange> ranges,
                              const KeySpan& keys,
                              AttentionState& state) const {
  constexpr int32_t kNowhere = 1 << 28;
  Buffer pages(pages_.size());
  std::memcpy(pages.data(), pages_.data(), pages.size());
  std::vector<float> q;
  std::vector<int32_t> positions;
  std::vector<SequenceRows> sequences;
  PagedAttentionParams params = Params(ranges, q, positions, sequences);
  std::vector<std::vector<int32_t>> tables;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const int32_t end = std::min(ranges[i].first + ranges[i].count, keys.end);
    Hide(pages, ranges[i].sequence, 0, std::min(keys.begin, length(ranges[i].sequence)));
    Hide(pages, ranges[i].sequence, end, length(ranges[i].sequence));
    const int32_t* table = PageTable(ranges[i].sequence);
    tables.emplace_back(table, table + max_pages_);
    std::fill_n(tables.back().begin(),
                std::min<int64_t>(max_pages_, keys.begin / shape_.layout.page_tokens),
                kNowhere);
    sequences[i].page_table = tables.back().data();
    sequences[i].key_begin = keys.begin;
    sequences[i].key_end = keys.end;
  }
  if (!keys.merge) {
    state.out.assign(q.size(), NAN);
    state.lse.assign(positions.size() * static_cast<size_t>(shape_.heads), NAN);
  }
  params.pages.base = pages.data();
  params.out = state.out.data();
  params.lse = state.lse.data();
  params.merge = keys.merge;
  const absl::Status status = ops.paged_attention(context, params);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace baton::kernels
