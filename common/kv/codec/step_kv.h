// The KV of the sequences of one step, as a model sees it.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/core/step_arrays.h"

namespace baton::kv {

// Rows [row_begin, row_begin + row_count) of a tile belong to sequence `sequence` of the step
// (index into ForwardBatch::sequences).
struct RowRun {
  int32_t sequence = 0;
  int32_t row_begin = 0;
  int32_t row_count = 0;

  constexpr bool operator==(const RowRun&) const = default;
};

// A tile: rows of a step that run through a layer together. Lives as long as the step.
struct KvRows {
  int32_t tile = 0;       // among the tiles that the step was prepared for
  int32_t row_begin = 0;  // in the residual stream that the tile is cut from
  int32_t rows = 0;
  std::span<const RowRun> runs;           // non-empty, ascending, covering every row
  const int32_t* positions = nullptr;     // [rows], absolute
  const int32_t* op_positions = nullptr;  // the same, where ops read them
};

// New keys (after RoPE) and values of one stored layer: [rows][kv_heads x head_dim] each,
// activations of the back end like all that a model hands over here (OpTable::activations).
struct KvEntries {
  int32_t kv_layer = 0;
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t stride = 0;  // elements from row to row, the same for both
};

// Queries of one model layer, and where their attention goes.
struct KvQueries {
  int32_t kv_layer = 0;
  // The first and the last model layer that reads this stored layer: both, unless layers share it
  // (AcrossKV).
  bool first_reader = true;
  bool last_reader = true;
  const void* q = nullptr;  // [rows, heads, head_dim], after RoPE
  int64_t q_stride = 0;
  int32_t heads = 0;
  float scale = 0.0f;
  int32_t sliding_window = 0;  // 0: none
  void* out = nullptr;         // [rows, heads, head_dim]
  int64_t out_stride = 0;
  // [rows, heads]: gets the log-sum-exps of attention to exact keys, for those who observe the
  // queries.
  float* lse = nullptr;
};

// A model writes the keys and values of every row and asks for attention over what its sequence
// has; which bytes that are is the business of the implementation (KV formats, page tables). Calls
// come from the executor thread: Prepare, then per stored layer in this order: Write for every
// tile, LayersWritten, Attend for the tiles of rows that get that far, LayerAttended. A plain layer
// writes and attends tile by tile: a tile sees the keys of those before it.
class StepKv {
 public:
  virtual ~StepKv() = default;

  // The tiles of the step, each with its index. What their ops have to be told goes to `arrays`,
  // which are uploaded before the first Write.
  virtual absl::Status Prepare(std::span<const KvRows> tiles, kernels::StepArrays& arrays) = 0;
  virtual absl::Status Write(const KvRows& rows, const KvEntries& entries) = 0;
  // Causal: a row sees the keys of its sequence up to and including its own position.
  virtual absl::Status Attend(const KvRows& rows, const KvQueries& queries) = 0;
  // SwiftKV: the normalised hidden states of the rows, [rows][hidden size], from which the keys and
  // values of all upper layers are made right after.
  virtual absl::Status WriteHidden(const KvRows& /*rows*/, const void* /*x*/, int64_t /*stride*/) {
    return absl::OkStatus();
  }
  // Every row of the step is written in the stored layers [layer_begin, layer_end).
  virtual absl::Status LayersWritten(int32_t layer_begin, int32_t layer_end) = 0;
  // Every row that reads stored layer `kv_layer` has attended to it, in all layers that share it.
  // Not called for upper SwiftKV layers in a step without survivors.
  virtual absl::Status LayerAttended(int32_t kv_layer) = 0;
};

}  // namespace baton::kv
