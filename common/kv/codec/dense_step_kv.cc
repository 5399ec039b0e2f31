#include "common/kv/codec/dense_step_kv.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/step_kv.h"
#include "kernels/core/round_up.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"

namespace baton::kv {
namespace {

// Of a decode row a multiple of this many: it stays for as many steps, and the ops' calls with it
// (kernels/core/op_graphs.h).
constexpr int32_t kBoundKeys = 64;

int32_t KeyBound(int32_t rows, int32_t keys) {
  return rows > 1 ? keys : kernels::RoundUp(keys, kBoundKeys);
}

}  // namespace

absl::Status DenseStepKv::Prepare(std::span<const KvRows> tiles, kernels::StepArrays& arrays) {
  PrepareTables(arrays);
  tiles_.clear();
  for (const KvRows& tile : tiles) {
    tiles_.push_back(PrepareRuns(tile, tile.runs, arrays));
  }
  return absl::OkStatus();
}

absl::Status DenseStepKv::Write(const KvRows& rows, const KvEntries& entries) {
  return Write(tiles_[static_cast<size_t>(rows.tile)], entries);
}

absl::Status DenseStepKv::Attend(const KvRows& rows, const KvQueries& queries) {
  return Attend(tiles_[static_cast<size_t>(rows.tile)], queries);
}

void DenseStepKv::PrepareTables(kernels::StepArrays& arrays) {
  sequences_.clear();
  op_tables_.clear();
  for (const DenseTable& table : tables_) {
    const size_t ids = static_cast<size_t>(table.layers) * static_cast<size_t>(table.stride);
    op_tables_.push_back(arrays.Add(std::span(table.data, table.data == nullptr ? 0 : ids)));
  }
}

DenseRuns DenseStepKv::PrepareRuns(const KvRows& tile,
                                   std::span<const RowRun> runs,
                                   kernels::StepArrays& arrays) {
  DenseRuns dense = {.positions = tile.op_positions, .count = static_cast<int64_t>(runs.size())};
  int32_t layers = 0;
  for (const RowRun& run : runs) {
    layers = std::max(layers, table(run.sequence).layers);
    dense.rows += run.row_count;
    dense.max_sequence_rows = std::max(dense.max_sequence_rows, run.row_count);
    const int32_t first = tile.positions[run.row_begin];
    const int32_t last = tile.positions[run.row_begin + run.row_count - 1];
    dense.max_keys = std::max(dense.max_keys, KeyBound(run.row_count, last + 1));
    dense.whole_keys = dense.whole_keys && last - first + 1 == run.row_count;
  }
  std::vector<kernels::SequenceRows>& sequences = sequences_.emplace_back();
  sequences.reserve(static_cast<size_t>(layers) * runs.size());
  for (int32_t layer = 0; layer < layers; ++layer) {
    for (const RowRun& run : runs) {
      sequences.push_back(
          {.row_begin = run.row_begin,
           .row_count = run.row_count,
           .page_table = op_tables_[static_cast<size_t>(run.sequence)] +
                         static_cast<ptrdiff_t>(layer) * table(run.sequence).stride});
    }
  }
  dense.sequences = arrays.Add(sequences);
  return dense;
}

absl::Status DenseStepKv::Write(const DenseRuns& runs, const KvEntries& entries) const {
  return ops_.kv_write(exec_,
                       {.k = entries.k,
                        .k_stride = entries.stride,
                        .v = entries.v,
                        .v_stride = entries.stride,
                        .positions = runs.positions,
                        .rows = runs.rows,
                        .sequences = runs.sequences + entries.kv_layer * runs.count,
                        .num_sequences = runs.count,
                        .pages = pages_});
}

absl::Status DenseStepKv::Attend(const DenseRuns& runs, const KvQueries& queries) const {
  return ops_.paged_attention(exec_,
                              {.q = queries.q,
                               .q_stride = queries.q_stride,
                               .positions = runs.positions,
                               .sequences = runs.sequences + queries.kv_layer * runs.count,
                               .num_sequences = runs.count,
                               .pages = pages_,
                               .heads = queries.heads,
                               .scale = queries.scale,
                               .sliding_window = queries.sliding_window,
                               .rows = runs.rows,
                               .max_sequence_rows = runs.max_sequence_rows,
                               .max_keys = runs.max_keys,
                               .whole_keys = runs.whole_keys,
                               .out = queries.out,
                               .out_stride = queries.out_stride,
                               .lse = queries.lse});
}

}  // namespace baton::kv
