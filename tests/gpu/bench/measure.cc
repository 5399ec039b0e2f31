#include "tests/gpu/bench/measure.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/timer.h"

namespace baton::kernels::cuda {
namespace {

// The rounding of results to bf16 alone is up to 4e-3 of the largest.
constexpr double kTolerance = 8e-3;

std::string Quoted(const std::string& text) {
  return absl::StrCat(
      "\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", " "}}), "\"");
}

// The fields of every row, without the closing brace.
std::string ShapeFields(const BenchShape& shape) {
  return absl::StrFormat(
      "{\"op\":%s,\"format\":%s,\"variant\":%s,\"rows\":%d,\"tokens\":%d,\"kv_heads\":%d,"
      "\"group\":%d,\"head_dim\":%d",
      Quoted(shape.op),
      Quoted(shape.format),
      Quoted(shape.variant),
      shape.rows,
      shape.tokens,
      shape.kv_heads,
      shape.group,
      shape.head_dim);
}

}  // namespace

bool Measure::Run(BenchCase& bench) const {
  const absl::StatusOr<Result> result = CheckAndTime(bench);
  if (result.ok()) {
    PrintResult(bench, *result);
  } else {
    absl::PrintF(
        "%s,\"failed\":%s}\n", ShapeFields(bench.shape()), Quoted(result.status().ToString()));
  }
  std::fflush(stdout);
  return result.ok();
}

absl::StatusOr<Measure::Result> Measure::CheckAndTime(BenchCase& bench) const {
  Result result;
  BATON_RETURN_IF_ERROR(bench.Prepare(*context_.queue));
  BATON_ASSIGN_OR_RETURN(result.error, bench.Error(context_));
  if (!(result.error <= kTolerance)) {  // NaN, too
    return absl::InternalError(absl::StrCat("differs from the CPU back end by ", result.error));
  }
  BATON_ASSIGN_OR_RETURN(result.seconds, Time(bench));
  return result;
}

absl::StatusOr<double> Measure::Time(BenchCase& bench) const {
  std::vector<double> seconds;
  for (int32_t step = 0; step < BenchCase::kAllSteps; step += BenchCase::kSteps) {
    const Timer timer(*context_.queue);
    for (int32_t i = 0; i < BenchCase::kSteps; ++i) {
      BATON_RETURN_IF_ERROR(RunStep(bench, step + i));
    }
    const double taken = timer.Seconds();
    if (step > 0) {
      seconds.push_back(taken / (BenchCase::kSteps * BenchCase::kLayers));
    }
  }
  BATON_RETURN_IF_ERROR(context_.queue->Wait());
  const auto median = seconds.begin() + BenchCase::kRepeats / 2;
  std::nth_element(seconds.begin(), median, seconds.end());
  return *median;
}

absl::Status Measure::RunStep(BenchCase& bench, int32_t step) const {
  for (int32_t layer = 0; layer < BenchCase::kLayers; ++layer) {
    BATON_RETURN_IF_ERROR(bench.Run(context_, layer, step));
  }
  return absl::OkStatus();
}

void Measure::PrintResult(const BenchCase& bench, const Result& result) const {
  const double rate = bench.bytes() / result.seconds;
  absl::PrintF(
      "%s,\"error\":%.2e,\"us\":%.2f,\"bytes\":%.0f,\"gb_per_s\":%.1f,\"share_of_4250\":%.3f,"
      "\"share_of_measured_read\":%.3f",
      ShapeFields(bench.shape()),
      result.error,
      result.seconds * 1e6,
      bench.bytes(),
      rate * 1e-9,
      rate / 4.25e12,
      rate / limits_.read_bytes_per_second);
  if (const double bytes = bench.link_bytes(); bytes > 0.0) {
    const double link_rate = bytes / result.seconds;
    absl::PrintF(",\"us_per_row\":%.2f,\"link_bytes\":%.0f,\"share_of_link_55_5\":%.3f",
                 result.seconds * 1e6 / bench.shape().rows,
                 bytes,
                 link_rate / 55.5e9);
  }
  absl::PrintF("}\n");
}

}  // namespace baton::kernels::cuda
