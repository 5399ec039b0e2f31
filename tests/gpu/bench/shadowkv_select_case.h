// Choice of the chunks that a decode step attends: op `shadowkv_select`.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/query_rows.h"
#include "tests/gpu/bench/shadowkv_load.h"
#include "tests/gpu/bench/shadowkv_pool.h"

namespace baton::kernels::cuda {

// All rows of a layer in one call.
class ShadowKvSelectCase : public BenchCase {
 public:
  explicit ShadowKvSelectCase(const BenchShape& shape, const ShadowKvCodes& codes = {});

  absl::Status Prepare(const DeviceQueue& queue) override;
  // Share of a row's chunks that the CPU does not choose: sums in another order may part chunks of
  // nearly the same score.
  absl::StatusOr<double> Error(const ExecContext& context) override;
  absl::Status Run(const ExecContext& context, int32_t layer, int32_t step) override;
  // Landmarks of all coded chunks that are not static, each once.
  double bytes() const override;

 private:
  ShadowKvLoad load_;
  ShadowKvPool pool_;
  QueryRows queries_;
  DeviceArena arena_;
  int32_t* ids_ = nullptr;  // [rows][kv_heads][budget chunks]
};

}  // namespace baton::kernels::cuda
