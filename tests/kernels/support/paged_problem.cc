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

std::vector<float> PagedProblem::Attend(const OpTable& ops,
                                        const ExecContext& context,
                                        std::span<const RowRange> ranges) const {
  const DensePageLayout& layout = shape_.layout;
  Buffer pages(pages_.size());
  std::memcpy(pages.data(), pages_.data(), pages.size());
  std::vector<float> q;
  std::vector<int32_t> positions;
  std::vector<SequenceRows> sequences;
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
    // Keys that a real step would not have written yet.
    for (int32_t token = range.first + range.count; token < length(range.sequence); ++token) {
      const auto id = static_cast<size_t>(PageTable(range.sequence)[token / layout.page_tokens]);
      std::byte* page = pages.data() + id * layout.stride_bytes();
      const size_t bytes = static_cast<size_t>(layout.head_dim) * DTypeBytes(layout.dtype);
      for (int32_t head = 0; head < layout.kv_heads; ++head) {
        std::memset(page + layout.key_offset(head, token % layout.page_tokens), 0xff, bytes);
        std::memset(page + layout.value_offset(head, token % layout.page_tokens), 0xff, bytes);
        if (layout.has_scales()) {
          std::memset(page + layout.key_scale_offset(head, token % layout.page_tokens), 0xff, 4);
          std::memset(page + layout.value_scale_offset(head, token % layout.page_tokens), 0xff, 4);
        }
      }
    }
  }
  std::vector<float> out(q.size(), NAN);
  const absl::Status status =
      ops.paged_attention(context,
                          {.q = q.data(),
                           .q_stride = row_elements(),
                           .positions = positions.data(),
                           .sequences = sequences.data(),
                           .num_sequences = static_cast<int64_t>(sequences.size()),
                           .pages = {.base = pages.data(), .layout = layout},
                           .heads = shape_.heads,
                           .scale = 1.0f / std::sqrt(static_cast<float>(layout.head_dim)),
                           .sliding_window = shape_.sliding_window,
                           .out = out.data(),
                           .out_stride = row_elements()});
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

}  // namespace baton::kernels
