// Sequences with KV in shuffled pages, and attention over chosen rows of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"

namespace baton::kernels {

struct PagedShape {
  int64_t heads = 4;
  DensePageLayout layout = {.page_tokens = 32, .kv_heads = 2, .head_dim = 64};
  int32_t sliding_window = 0;
};

// Rows [first, first + count) of one sequence, by position.
struct RowRange {
  int sequence = 0;
  int32_t first = 0;
  int32_t count = 0;
};

// Attention over a range of keys, and what it gives or is merged into.
struct KeySpan {
  int32_t begin = 0;
  int32_t end = INT32_MAX;
  bool merge = false;
};
struct AttentionState {
  std::vector<float> out;  // [rows, heads, head_dim]
  std::vector<float> lse;  // [rows, heads]
};

// Holds `lengths.size()` sequences whose pages are filled by kv_write. Unused slots and unused
// pages hold NaN, so that a kernel that reads past a sequence's end shows.
class PagedProblem {
 public:
  PagedProblem(const OpTable& ops,
               const ExecContext& context,
               const PagedShape& shape,
               std::vector<int32_t> lengths);

  // Attention of the ranges' rows packed in one call; [rows, heads, head_dim] in the ranges' order.
  // A sequence's keys past the call's last row are hidden: the pages hold NaN there during the
  // call.
  std::vector<float> Attend(const OpTable& ops,
                            const ExecContext& context,
                            std::span<const RowRange> ranges) const;
  // The same over `keys` alone. Everything outside is hidden: slots hold NaN, and the ids of pages
  // before the first key lead nowhere.
  void AttendKeys(const OpTable& ops,
                  const ExecContext& context,
                  std::span<const RowRange> ranges,
                  const KeySpan& keys,
                  AttentionState& state) const;

  // Elements of one row of the result.
  int64_t row_elements() const { return shape_.heads * shape_.layout.head_dim; }
  int32_t length(int sequence) const { return lengths_[static_cast<size_t>(sequence)]; }

 private:
  const int32_t* PageTable(int sequence) const;
  void Hide(Buffer& pages, int sequence, int32_t begin, int32_t end) const;
  // A call for the ranges' rows; the vectors are what it points to.
  PagedAttentionParams Params(std::span<const RowRange> ranges,
                              std::vector<float>& q,
                              std::vector<int32_t>& positions,
                              std::vector<SequenceRows>& sequences) const;

  PagedShape shape_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> page_table_;  // all sequences, max_pages_ each
  int64_t max_pages_ = 0;
  std::vector<std::vector<float>> queries_;  // per sequence [length, heads, head_dim]
  Buffer pages_;
};

}  // namespace baton::kernels
