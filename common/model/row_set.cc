#include "common/model/row_set.h"

#include <algorithm>

namespace baton::model {

RowSet::RowSet(int32_t max_rows, std::span<const float> inverse_frequencies)
    : inverse_frequencies_(inverse_frequencies.begin(), inverse_frequencies.end()),
      cosines_(static_cast<size_t>(max_rows) * inverse_frequencies.size() * sizeof(float)),
      sines_(cosines_.size()) {
  positions_.reserve(static_cast<size_t>(max_rows));
}

absl::Status RowSet::SetAll(const ForwardBatch& batch,
                            const kernels::OpTable& ops,
                            const kernels::ExecContext& exec) {
  positions_.assign(batch.positions.begin(), batch.positions.end());
  extents_.clear();
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceSlice& slice = batch.sequences[i];
    if (slice.row_count > 0) {
      extents_.push_back(
          {slice.row_begin, slice.row_begin + slice.row_count, static_cast<int32_t>(i)});
    }
  }
  return Finish(ops, exec);
}

absl::Status RowSet::SetSurvivors(const ForwardBatch& batch,
                                  const kernels::OpTable& ops,
                                  const kernels::ExecContext& exec) {
  positions_.clear();
  extents_.clear();
  size_t next = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceSlice& slice = batch.sequences[i];
    const int32_t row_begin = static_cast<int32_t>(next);
    while (next < batch.survivors.size() &&
           batch.survivors[next] < slice.row_begin + slice.row_count) {
      positions_.push_back(batch.positions[static_cast<size_t>(batch.survivors[next])]);
      ++next;
    }
    const int32_t row_end = static_cast<int32_t>(next);
    if (row_end > row_begin) {
      extents_.push_back({row_begin, row_end, static_cast<int32_t>(i)});
    }
  }
  return Finish(ops, exec);
}

absl::Status RowSet::Finish(const kernels::OpTable& ops, const kernels::ExecContext& exec) {
  rows_ = static_cast<int32_t>(positions_.size());
  tiles_.clear();
  for (int32_t row = 0; row < rows_; row += kTileRows) {
    tiles_.push_back({row, std::min(kTileRows, rows_ - row)});
  }
  return ops.rope_angles(exec,
                         {.positions = positions_.data(),
                          .inverse_frequencies = inverse_frequencies_.data(),
                          .rows = rows_,
                          .half_dim = static_cast<int64_t>(inverse_frequencies_.size()),
                          .cosines = cosines_.as<float>(),
                          .sines = sines_.as<float>()});
}

const float* RowSet::cosines(const RowTile& tile) const {
  return cosines_.as<float>() + static_cast<size_t>(tile.row_begin) * inverse_frequencies_.size();
}

const float* RowSet::sines(const RowTile& tile) const {
  return sines_.as<float>() + static_cast<size_t>(tile.row_begin) * inverse_frequencies_.size();
}

kv::KvRows RowSet::Rows(const RowTile& tile) {
  runs_.clear();
  const int32_t tile_end = tile.row_begin + tile.row_count;
  auto extent = std::upper_bound(
      extents_.begin(), extents_.end(), tile.row_begin, [](int32_t row, const Extent& candidate) {
        return row < candidate.row_end;
      });
  for (; extent != extents_.end() && extent->row_begin < tile_end; ++extent) {
    const int32_t begin = std::max(extent->row_begin, tile.row_begin);
    const int32_t end = std::min(extent->row_end, tile_end);
    runs_.push_back({.sequence = extent->sequence,
                     .row_begin = begin - tile.row_begin,
                     .row_count = end - begin});
  }
  return {.rows = tile.row_count, .runs = runs_, .positions = positions_.data() + tile.row_begin};
}

}  // namespace baton::model
