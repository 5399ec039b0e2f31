// Pages for prompts in format `diffkv`: op `diffkv_assign_pages`.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/diffkv_arrays.h"
#include "tests/gpu/bench/diffkv_load.h"

namespace baton::kernels::cuda {

// One layer of every row, a call of the op each, as prompts come in. The pages themselves take no
// memory.
class DiffKvAssignCase : public BenchCase {
 public:
  // `high_share` of the prompt's tokens are in the high tier.
  DiffKvAssignCase(const BenchShape& shape, double high_share);

  absl::Status Prepare(const DeviceQueue& queue) override;
  // Entries of the table of one sequence that are not as the CPU back end leaves them.
  absl::StatusOr<double> Error(const ExecContext& context) override;
  absl::Status Run(const ExecContext& context, int32_t layer, int32_t step) override;
  // Entries that are written.
  double bytes() const override;

 private:
  int64_t pages_of_sequence() const;

  DiffKvLoad load_;
  DeviceArena arena_;
  DiffKvArrays arrays_;
};

}  // namespace baton::kernels::cuda
