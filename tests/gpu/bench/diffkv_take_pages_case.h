// The page manager of a generation step: op `diffkv_take_pages`.
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

// A step's new tokens in all layers of a model, after a prompt of the shape's tokens: one call each
// time, whichever layer is asked for. Sequences grow by a token in each.
class DiffKvTakePagesCase : public BenchCase {
 public:
  // `high_share` of the prompt's tokens are in the high tier; new tokens go there.
  DiffKvTakePagesCase(const BenchShape& shape, double high_share, int32_t model_layers);

  absl::Status Prepare(const DeviceQueue& queue) override;
  // Bytes of the pool, and entries of tables, counts and leases, that a call leaves for few
  // sequences of few layers other than the CPU back end does.
  absl::StatusOr<double> Error(const ExecContext& context) override;
  absl::Status Run(const ExecContext& context, int32_t layer, int32_t step) override;
  // Counts of all heads.
  double bytes() const override;

 private:
  absl::Status UploadRows();
  absl::StatusOr<double> Differences(const ExecContext& context) const;
  absl::Status TakeOnHost(HostDiffKvPool& pool) const;

  DiffKvLoad load_;
  DiffKvPool pool_;
  DeviceArena arena_;
  DiffKvAppendRow* rows_ = nullptr;  // [layers][rows]
};

}  // namespace baton::kernels::cuda
