// The rows that run through a layer together, cut into tiles.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/kv/codec/step_kv.h"
#include "common/model/forward.h"
#include "kernels/core/buffer.h"
#include "kernels/ops/op_table.h"

namespace baton::model {

// Rows that a layer processes at a time. Everything between two residual streams is kept for one
// tile only, which bounds activation memory and keeps it near the caches; keys of earlier tiles are
// in their pages by then, so attention inside a tile sees them.
inline constexpr int32_t kTileRows = 512;

struct RowTile {
  int32_t row_begin = 0;
  int32_t row_count = 0;
};

// All rows of a step, or its survivors: positions, RoPE angles and which sequence owns which rows.
// Reused from step to step; its memory is made once, for max_rows. Not thread-safe.
class RowSet {
 public:
  RowSet(int32_t max_rows, std::span<const float> inverse_frequencies);

  // All rows of `batch`, which must be valid (ValidateBatch). Borrows it until the next Set.
  absl::Status SetAll(const ForwardBatch& batch,
                      const kernels::OpTable& ops,
                      const kernels::ExecContext& exec);
  // The rows batch.survivors.
  absl::Status SetSurvivors(const ForwardBatch& batch,
                            const kernels::OpTable& ops,
                            const kernels::ExecContext& exec);

  int32_t rows() const { return rows_; }
  std::span<const RowTile> tiles() const { return tiles_; }
  const float* cosines(const RowTile& tile) const;
  const float* sines(const RowTile& tile) const;
  // The rows of a tile; row_begin of a run counts from the tile's first row. Valid until the next
  // call.
  kv::KvRows Rows(const RowTile& tile);

 private:
  // A sequence's rows in this set.
  struct Extent {
    int32_t row_begin = 0;
    int32_t row_end = 0;
    int32_t sequence = 0;  // index into ForwardBatch::sequences
  };

  absl::Status Finish(const kernels::OpTable& ops, const kernels::ExecContext& exec);

  std::vector<float> inverse_frequencies_;
  int32_t rows_ = 0;
  std::vector<int32_t> positions_;
  kernels::Buffer cosines_;  // f32 [max_rows, half_dim]
  kernels::Buffer sines_;
  std::vector<Extent> extents_;  // non-empty, ascending
  std::vector<RowTile> tiles_;
  std::vector<kv::RowRun> runs_;
};

}  // namespace baton::model
