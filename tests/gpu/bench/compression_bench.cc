// What compressing a prompt costs for one layer at the shape of Llama-3.1-8B: scores, and coding in
// each format. Bytes or operations a second, whichever take the device longer.
//
//   gpu_compression_bench [--quick]
//
// One JSON object a case, on a line of its own:
//   op, tokens                        what was timed: ops one after another, for a prompt
//   error                             difference from the CPU back end for a prompt of 512 tokens
//   us                                microseconds of the ops; median of repeats
//   bytes, gb_per_s, share_of_4250    read and written at least, and that in 10^9 bytes a second;
//                                     or, where these are what takes the device longer,
//   operations, tflop_per_s, share_of_756   of matrix products, in 10^12 a second
// A case that failed has `failed` with the reason instead of what follows tokens; the others go on,
// and the status is 1.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

#include "common/base/status_macros.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/compression_case.h"
#include "tests/gpu/bench/compression_diffkv_case.h"
#include "tests/gpu/bench/compression_fp8_case.h"
#include "tests/gpu/bench/compression_hidden_case.h"
#include "tests/gpu/bench/compression_prompt.h"
#include "tests/gpu/bench/compression_scores_case.h"
#include "tests/gpu/bench/compression_shadowkv_case.h"
#include "tests/gpu/bench/timer.h"

namespace baton::kernels::cuda {
namespace {

constexpr double kBytesPerSecond = 4.25e12;
constexpr double kOperationsPerSecond = 756e12;
// Bytes must not differ; products in another order may part scores by so much.
constexpr double kTolerance = 8e-3;
constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int32_t kRepeats = 5;
// A repeat takes about so long.
constexpr double kRepeatSeconds = 0.1;

using MakeCase = std::unique_ptr<CompressionCase> (*)(int32_t tokens);

template <typename Case>
std::unique_ptr<CompressionCase> Make(int32_t tokens) {
  return std::make_unique<Case>(tokens);
}

struct Result {
  double error = 0.0;
  double seconds = 0.0;  // of a Run
};

// Seconds of so many rounds through the layers.
absl::StatusOr<double> TimeRounds(const ExecContext& context,
                                  CompressionCase& bench,
                                  int32_t rounds) {
  const Timer timer(*context.queue);
  for (int32_t call = 0; call < rounds * CompressionCase::kLayers; ++call) {
    BATON_RETURN_IF_ERROR(bench.Run(context, call % CompressionCase::kLayers));
  }
  return timer.Seconds();
}

// Seconds of a Run. The first round warms up, the second tells how many a repeat has.
absl::StatusOr<double> Time(const ExecContext& context, CompressionCase& bench) {
  constexpr int32_t kMostRounds = (CompressionCase::kMostLayerCalls - 2) / kRepeats;
  BATON_RETURN_IF_ERROR(TimeRounds(context, bench, 1).status());
  BATON_ASSIGN_OR_RETURN(const double round, TimeRounds(context, bench, 1));
  const auto rounds =
      static_cast<int32_t>(std::clamp(kRepeatSeconds / round, 1.0, double{kMostRounds}));
  std::vector<double> seconds;
  for (int32_t repeat = 0; repeat < kRepeats; ++repeat) {
    BATON_ASSIGN_OR_RETURN(const double taken, TimeRounds(context, bench, rounds));
    seconds.push_back(taken / (rounds * CompressionCase::kLayers));
  }
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  const auto median = seconds.begin() + kRepeats / 2;
  std::nth_element(seconds.begin(), median, seconds.end());
  return *median;
}

absl::StatusOr<double> Check(const ExecContext& context, MakeCase make) {
  const std::unique_ptr<CompressionCase> bench = make(CompressionPrompt::kDistinctTokens);
  BATON_RETURN_IF_ERROR(bench->Prepare(context));
  BATON_ASSIGN_OR_RETURN(const double error, bench->Error(context));
  if (!(error <= kTolerance)) {  // NaN, too
    return absl::InternalError(absl::StrCat("differs from the CPU back end by ", error));
  }
  return error;
}

absl::StatusOr<Result> CheckAndTime(const ExecContext& context,
                                    MakeCase make,
                                    CompressionCase& bench) {
  Result result;
  BATON_ASSIGN_OR_RETURN(result.error, Check(context, make));
  BATON_RETURN_IF_ERROR(bench.Prepare(context));
  BATON_ASSIGN_OR_RETURN(result.seconds, Time(context, bench));
  return result;
}

void PrintRow(const CompressionCase& bench, const absl::StatusOr<Result>& result) {
  absl::PrintF("{\"op\":\"%s\",\"tokens\":%d", bench.ops(), bench.tokens());
  if (!result.ok()) {
    absl::PrintF(",\"failed\":\"%s\"}\n",
                 absl::StrReplaceAll(result.status().ToString(),
                                     {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", " "}}));
  } else if (bench.operations() / kOperationsPerSecond > bench.bytes() / kBytesPerSecond) {
    const double rate = bench.operations() / result->seconds;
    absl::PrintF(
        ",\"error\":%.2e,\"us\":%.2f,\"operations\":%.0f,\"tflop_per_s\":%.2f,"
        "\"share_of_756\":%.3f}\n",
        result->error,
        result->seconds * 1e6,
        bench.operations(),
        rate * 1e-12,
        rate / kOperationsPerSecond);
  } else {
    const double rate = bench.bytes() / result->seconds;
    absl::PrintF(
        ",\"error\":%.2e,\"us\":%.2f,\"bytes\":%.0f,\"gb_per_s\":%.1f,\"share_of_4250\":%.3f}\n",
        result->error,
        result->seconds * 1e6,
        bench.bytes(),
        rate * 1e-9,
        rate / kBytesPerSecond);
  }
  std::fflush(stdout);
}

// True when every case was measured.
absl::StatusOr<bool> RunAll(bool quick) {
  if (CudaOps() == nullptr) {
    return absl::FailedPreconditionError("no CUDA device");
  }
  const std::vector<int32_t> sizes =
      quick ? std::vector<int32_t>{8192} : std::vector<int32_t>{8192, 32768};
  const size_t workspace =
      std::max(kWorkspaceBytes, CompressionShadowKvCase::WorkspaceBytes(sizes.back()));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceQueue> queue, DeviceQueue::Create(workspace));
  const ExecContext context = {.queue = queue.get()};
  bool measured = true;
  for (const int32_t tokens : sizes) {
    for (const MakeCase make : {Make<CompressionScoresCase>,
                                Make<CompressionDiffKvCase>,
                                Make<CompressionShadowKvCase>,
                                Make<CompressionFp8Case>,
                                Make<CompressionHiddenCase>}) {
      const std::unique_ptr<CompressionCase> bench = make(tokens);
      const absl::StatusOr<Result> result = CheckAndTime(context, make, *bench);
      PrintRow(*bench, result);
      measured = measured && result.ok();
    }
  }
  return measured;
}

}  // namespace
}  // namespace baton::kernels::cuda

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  const absl::StatusOr<bool> measured = baton::kernels::cuda::RunAll(quick);
  if (!measured.ok()) {
    std::fprintf(stderr, "%s\n", measured.status().ToString().c_str());
    return 1;
  }
  return *measured ? 0 : 1;
}
