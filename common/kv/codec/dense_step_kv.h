// Sequences whose KV is in dense pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/step_kv.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"

namespace baton::kv {

// Page ids [layers][stride] of one sequence: layer l's table starts at data + l * stride.
struct DenseTable {
  const int32_t* data = nullptr;
  int32_t stride = 0;
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

  absl::Status Write(const KvRows& rows, const KvEntries& entries) override;
  absl::Status Attend(const KvRows& rows, const KvQueries& queries) override;
  absl::Status LayersWritten(int32_t /*layer_begin*/, int32_t /*layer_end*/) override {
    return absl::OkStatus();
  }
  absl::Status LayerAttended(int32_t /*kv_layer*/) override { return absl::OkStatus(); }

  const kernels::DensePages& pages() const { return pages_; }
  const DenseTable& table(int32_t sequence) const { return tables_[static_cast<size_t>(sequence)]; }

 private:
  std::span<const kernels::SequenceRows> Sequences(const KvRows& rows, int32_t kv_layer);

  const kernels::OpTable& ops_;
  const kernels::ExecContext& exec_;
  const kernels::DensePages pages_;
  const std::span<const DenseTable> tables_;
  std::vector<kernels::SequenceRows> sequences_;
};

}  // namespace baton::kv
