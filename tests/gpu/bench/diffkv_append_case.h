// A generation step's new tokens in quantized pages: op `diffkv_append`.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/diffkv_load.h"
#include "tests/gpu/bench/diffkv_pool.h"
#include "tests/gpu/bench/host_diffkv_pool.h"

namespace baton::kernels::cuda {

// All rows of a layer in one call, after a prompt of the shape's tokens, and, at a step's first
// layer, the policy and the pages of all. Sequences grow by a token in each step, and have leases
// and tables for all of them.
class DiffKvAppendCase : public BenchCase {
 public:
  // `high_share` of the prompt's tokens are in the high tier. With `sweep` every row looks for
  // victims, else new tokens are appended alone.
  DiffKvAppendCase(const BenchShape& shape, double high_share, bool sweep);

  absl::Status Prepare(const DeviceQueue& queue) override;
  // Bytes of the pool, and entries of tables, counts and leases, that an append to a small load
  // leaves other than the CPU back end does.
  absl::StatusOr<double> Error(const ExecContext& context) override;
  absl::Status Run(const ExecContext& context, int32_t layer, int32_t step) override;
  // Swept: score and position of every token of the prompt.
  double bytes() const override;

 private:
  absl::Status UploadRows();
  // Of `rows` rows from the `first` of all on.
  DiffKvAppendParams Params(int64_t first, int64_t rows) const;
  // What the new tokens of [layers][rows] rows from the `first` of all on do, and their pages.
  absl::Status Decide(const ExecContext& context,
                      int64_t first,
                      int32_t layers,
                      int32_t rows) const;
  // Appends to the last row of the first layer, here and on the CPU.
  absl::StatusOr<double> Differences(const ExecContext& context) const;
  absl::Status AppendOnHost(int32_t row, HostDiffKvPool& pool) const;

  int64_t width() const { return int64_t{shape().kv_heads} * shape().head_dim; }

  double high_share_;
  bool sweep_;
  DiffKvLoad load_;
  DiffKvPool pool_;
  DeviceArena arena_;
  uint16_t* tokens_ = nullptr;       // [rows][key, value][kv_heads][head_dim]
  DiffKvAppendRow* rows_ = nullptr;  // [steps][layers][rows]
};

}  // namespace baton::kernels::cuda
