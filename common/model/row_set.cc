#include "common/model/row_set.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/step_kv.h"
#include "common/model/forward.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/op_table.h"

namespace baton::model {

int32_t TileRows(const kernels::OpTable& ops, int32_t max_step_rows) {
  return ops.tile_rows == 0 ? max_step_rows : std::min(ops.tile_rows, max_step_rows);
}

absl::StatusOr<RowSet> RowSet::Create(int32_t max_rows,
                                      int32_t tile_rows,
                                      int64_t half_dim,
                                      kernels::MemorySpace& space) {
  RowSet rows;
  rows.tile_rows_ = tile_rows;
  rows.half_dim_ = half_dim;
  rows.positions_.reserve(static_cast<size_t>(max_rows));
  const size_t bytes = static_cast<size_t>(max_rows * half_dim) * sizeof(float);
  BATON_ASSIGN_OR_RETURN(rows.cosines_, space.Allocate(bytes));
  BATON_ASSIGN_OR_RETURN(rows.sines_, space.Allocate(bytes));
  return rows;
}

void RowSet::SetAll(const ForwardBatch& batch, int32_t first_tile, kernels::StepArrays& arrays) {
  positions_.assign(batch.positions.begin(), batch.positions.end());
  extents_.clear();
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceSlice& slice = batch.sequences[i];
    if (slice.row_count > 0) {
      extents_.push_back(
          {slice.row_begin, slice.row_begin + slice.row_count, static_cast<int32_t>(i)});
    }
  }
  Cut(first_tile, arrays);
}

void RowSet::SetSurvivors(const ForwardBatch& batch,
                          int32_t first_tile,
                          kernels::StepArrays& arrays) {
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
  Cut(first_tile, arrays);
}

void RowSet::Cut(int32_t first_tile, kernels::StepArrays& arrays) {
  op_positions_ = arrays.Add(positions_);
  tiles_.clear();
  runs_.clear();
  for (int32_t row = 0; row < rows(); row += tile_rows_) {
    const int32_t count = std::min(tile_rows_, rows() - row);
    const std::vector<kv::RowRun>& runs = runs_.emplace_back(RunsOf(row, row + count));
    tiles_.push_back({.tile = first_tile + static_cast<int32_t>(tiles_.size()),
                      .row_begin = row,
                      .rows = count,
                      .runs = runs,
                      .positions = positions_.data() + row,
                      .op_positions = op_positions_ + row});
  }
}

std::vector<kv::RowRun> RowSet::RunsOf(int32_t row_begin, int32_t row_end) const {
  std::vector<kv::RowRun> runs;
  auto extent = std::upper_bound(
      extents_.begin(), extents_.end(), row_begin, [](int32_t row, const Extent& candidate) {
        return row < candidate.row_end;
      });
  for (; extent != extents_.end() && extent->row_begin < row_end; ++extent) {
    const int32_t begin = std::max(extent->row_begin, row_begin);
    const int32_t end = std::min(extent->row_end, row_end);
    runs.push_back(
        {.sequence = extent->sequence, .row_begin = begin - row_begin, .row_count = end - begin});
  }
  return runs;
}

absl::Status RowSet::ComputeAngles(const kernels::OpTable& ops,
                                   const kernels::ExecContext& exec,
                                   const float* inverse_frequencies) {
  return ops.rope_angles(exec,
                         {.positions = op_positions_,
                          .inverse_frequencies = inverse_frequencies,
                          .rows = rows(),
                          .half_dim = half_dim_,
                          .cosines = cosines_.as<float>(),
                          .sines = sines_.as<float>()});
}

const float* RowSet::cosines(const kv::KvRows& tile) const {
  return cosines_.as<float>() + tile.row_begin * half_dim_;
}

const float* RowSet::sines(const kv::KvRows& tile) const {
  return sines_.as<float>() + tile.row_begin * half_dim_;
}

}  // namespace baton::model
