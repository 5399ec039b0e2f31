// Times cases and prints their rows.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_limits.h"

namespace baton::kernels::cuda {

// One JSON object a case, on a line of its own:
//   op, format, variant, rows, tokens, kv_heads, group, head_dim   what was timed (BenchShape)
//   error                  difference from the CPU back end
//   us                     microseconds of one call, over all steps and layers; median of repeats
//   bytes, gb_per_s        what a call reads at least, and that in 10^9 bytes a second
//   share_of_4250          of 4250 GB/s
//   share_of_measured_read of what the device reads at best (DeviceLimits)
// and of a case that could not be measured `failed` with the reason instead of what follows
// head_dim.
class Measure {
 public:
  // Borrows the context.
  Measure(const ExecContext& context, const DeviceLimits& limits)
      : context_(context), limits_(limits) {}

  // Prepares the case, compares it with the CPU, times it and prints its row. False if it failed.
  bool Run(BenchCase& bench) const;

 private:
  struct Result {
    double error = 0.0;
    double seconds = 0.0;  // of a call
  };

  absl::StatusOr<Result> CheckAndTime(BenchCase& bench) const;
  absl::StatusOr<double> Time(BenchCase& bench) const;
  absl::Status RunStep(BenchCase& bench, int32_t step) const;
  void PrintResult(const BenchCase& bench, const Result& result) const;

  const ExecContext& context_;
  DeviceLimits limits_;
};

}  // namespace baton::kernels::cuda
