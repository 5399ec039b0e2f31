// Sequences whose KV is in dense pages.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/step_kv.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"

namespace baton::kv {

// Page ids [layers][stride] of one sequence: layer l's table starts at data + l * stride.
struct DenseTable {
  const int32_t* data = nullptr;
  int32_t stride = 0;
  int32_t layers = 0;
};

// Some runs of a tile as the dense ops take them, in every stored layer. Lives as long as the
// DenseStepKv that made it.
struct DenseRuns {
  const int32_t* positions = nullptr;  // of the tile, where ops read them
  // [layers][count], where ops read them; null without a run
  const kernels::SequenceRows* sequences = nullptr;
  int64_t count = 0;
  int64_t rows = 0;  // of all runs
  int32_t max_sequence_rows = 0;
  int32_t max_keys = 0;
  bool whole_keys = true;  // a run's positions follow each other (PagedAttentionParams)
};

// Writes and attends by the dense ops. Everything is borrowed. Not thread-safe.
class DenseStepKv : public StepKv {
 public:
  // `tables` by sequence of the step.
  DenseStepKv(const kernels::OpTable& ops,
              const kernels::ExecContext& exec,
              const kernels::DensePages& pages,
              std::span<const DenseTable> tables)
      : ops_(ops), exec_(exec), pages_(pages), tables_(tables) {}

  absl::Status Prepare(std::span<const KvRows> tiles, kernels::StepArrays& arrays) override;
  absl::Status Write(const KvRows& rows, const KvEntries& entries) override;
  absl::Status Attend(const KvRows& rows, const KvQueries& queries) override;
  absl::Status LayersWritten(int32_t /*layer_begin*/, int32_t /*layer_end*/) override {
    return absl::OkStatus();
  }
  absl::Status LayerAttended(int32_t /*kv_layer*/) override { return absl::OkStatus(); }

  // For a step of which only some rows are in dense pages: the tables, once a step, then `runs` of
  // a tile, ascending; and the ops over them.
  void PrepareTables(kernels::StepArrays& arrays);
  DenseRuns PrepareRuns(const KvRows& tile,
                        std::span<const RowRun> runs,
                        kernels::StepArrays& arrays);
  absl::Status Write(const DenseRuns& runs, const KvEntries& entries) const;
  absl::Status Attend(const DenseRuns& runs, const KvQueries& queries) const;

  const kernels::DensePages& pages() const { return pages_; }
  const DenseTable& table(int32_t sequence) const { return tables_[static_cast<size_t>(sequence)]; }
  // The table where ops read it, once PrepareTables was called.
  DenseTable op_table(int32_t sequence) const {
    DenseTable table = tables_[static_cast<size_t>(sequence)];
    table.data = op_tables_[static_cast<size_t>(sequence)];
    return table;
  }

 private:
  const kernels::OpTable& ops_;
  const kernels::ExecContext& exec_;
  const kernels::DensePages pages_;
  const std::span<const DenseTable> tables_;
  std::vector<const int32_t*> op_tables_;  // where ops read them
  // What DenseRuns point to on the host; a deque, so that it stays there.
  std::deque<std::vector<kernels::SequenceRows>> sequences_;
  std::vector<DenseRuns> tiles_;
};

}  // namespace baton::kv
