// Decode attention over quantized pages: op `diffkv_attention`.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/diffkv_load.h"
#include "tests/gpu/bench/diffkv_pool.h"
#include "tests/gpu/bench/query_rows.h"

namespace baton::kernels::cuda {

// All rows of a layer in one call.
class DiffKvAttentionCase : public BenchCase {
 public:
  // `high_share` of a sequence's tokens are in the high tier. Every `every`-th step scores the
  // tokens; 0: none does.
  DiffKvAttentionCase(const BenchShape& shape, double high_share, int32_t every);

  absl::Status Prepare(const DeviceQueue& queue) override;
  absl::StatusOr<double> Error(const ExecContext& context) override;
  absl::Status Run(const ExecContext& context, int32_t layer, int32_t step) override;
  // Codes, scales and zeros of the tokens, each once.
  double bytes() const override;

 private:
  absl::Status UploadRows();
  DiffKvAttentionParams Params() const;
  // The results of one row of the first layer on the CPU.
  absl::StatusOr<std::vector<float>> OnHost(int32_t row) const;

  DiffKvLoad load_;
  int32_t every_;
  DiffKvPool pool_;
  QueryRows queries_;
  DeviceArena arena_;
  float* scratch_ = nullptr;
  DiffKvAttentionRow* rows_ = nullptr;  // [unscored, scored][layers][rows]
};

}  // namespace baton::kernels::cuda
