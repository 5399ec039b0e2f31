// The rows that run through a layer together, cut into tiles.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/step_kv.h"
#include "common/model/forward.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/op_table.h"

namespace baton::model {

// Rows that a layer processes at a time (OpTable::tile_rows), in steps of at most `max_step_rows`.
// Everything between two residual streams is kept for one tile only, which bounds activation memory
// and keeps it near the caches of a host; keys of earlier tiles are in their pages by then, so
// attention inside a tile sees them.
int32_t TileRows(const kernels::OpTable& ops, int32_t max_step_rows);

// All rows of a step, or its survivors: positions, RoPE angles and which sequence owns which rows.
// Reused from step to step; its memory is made once, for max_rows. Not thread-safe.
class RowSet {
 public:
  // `space` is the back end's; kResourceExhausted when it lacks the memory.
  static absl::StatusOr<RowSet> Create(int32_t max_rows,
                                       int32_t tile_rows,
                                       int64_t half_dim,
                                       kernels::MemorySpace& space);

  // All rows of `batch`, which must be valid (ValidateBatch). Its tiles are numbered from
  // `first_tile` on. Positions go to `arrays`.
  void SetAll(const ForwardBatch& batch, int32_t first_tile, kernels::StepArrays& arrays);
  // The rows batch.survivors.
  void SetSurvivors(const ForwardBatch& batch, int32_t first_tile, kernels::StepArrays& arrays);

  // The angles of every row, once the arrays are uploaded. `inverse_frequencies`: where ops read
  // them, [half_dim].
  absl::Status ComputeAngles(const kernels::OpTable& ops,
                             const kernels::ExecContext& exec,
                             const float* inverse_frequencies);

  int32_t rows() const { return static_cast<int32_t>(positions_.size()); }
  // Valid until the next Set.
  std::span<const kv::KvRows> tiles() const { return tiles_; }
  // Angles of a tile's rows, where ops read them.
  const float* cosines(const kv::KvRows& tile) const;
  const float* sines(const kv::KvRows& tile) const;

 private:
  // A sequence's rows in this set.
  struct Extent {
    int32_t row_begin = 0;
    int32_t row_end = 0;
    int32_t sequence = 0;  // index into ForwardBatch::sequences
  };

  RowSet() = default;
  void Cut(int32_t first_tile, kernels::StepArrays& arrays);
  std::vector<kv::RowRun> RunsOf(int32_t row_begin, int32_t row_end) const;

  int32_t tile_rows_ = 0;
  int64_t half_dim_ = 0;
  std::vector<int32_t> positions_;
  const int32_t* op_positions_ = nullptr;
  kernels::Memory cosines_;  // f32 [max_rows, half_dim]
  kernels::Memory sines_;
  std::vector<Extent> extents_;  // non-empty, ascending
  std::vector<kv::KvRows> tiles_;
  std::deque<std::vector<kv::RowRun>> runs_;  // of the tiles, which point to them
};

}  // namespace baton::model
