// What prefill of Llama-3.1-8B is made of: its linear layers, from one row to a chunk, and
// attention of prompts (prefill_attention_case.h says what its rows hold). Operations and bytes a
// second.
//
//   gpu_prefill_bench [--quick]
//
// One JSON object a case, on a line of its own; of a linear layer:
//   op, layer, parts, rows, in_features, out_features   what was timed. Parts are norm, rotation
//                                 and gate of the model's layer: none, fused (by the op), separate
//                                 (by ops of their own)
//   error                         difference from sums in double, relative to the largest
//   us                            microseconds of one call, over all steps and layers; median of
//                                 repeats
//   tflop_per_s, share_of_756     10^12 multiplications and additions a second; of 756 of them
//   gb_per_s, share_of_4250       10^9 bytes of weight, x and result a second; of 4250 of them
// Every case is checked before it is timed. One that fails has `failed` with the reason instead of
// what follows out_features; the others go on, and the status is 1.
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
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/matmul_case.h"
#include "tests/gpu/bench/prefill_attention_case.h"
#include "tests/gpu/bench/timer.h"

namespace baton::kernels::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
// The rounding of results to bf16 alone is up to 4e-3 of the largest.
constexpr double kTolerance = 8e-3;
// Logits are wanted of the last rows of sequences, not of prompts.
constexpr int32_t kMostLogitRows = 64;
// Up to so many rows norm, rotation and gate are part of a product's kernel.
constexpr int32_t kMostFusedRows = 8;

struct Result {
  double error = 0.0;
  double seconds = 0.0;  // of a call
};

std::vector<std::unique_ptr<MatmulCase>> AllCases(bool quick) {
  const std::vector<LinearLayer> layers = {
      {.name = "qkv", .out_features = 6144, .in_features = 4096, .norm = true, .rotated_heads = 40},
      {.name = "o", .out_features = 4096, .in_features = 4096},
      {.name = "gate_up", .out_features = 28672, .in_features = 4096, .norm = true, .gated = true},
      {.name = "down", .out_features = 4096, .in_features = 14336},
      {.name = "lm_head", .out_features = 128256, .in_features = 4096, .wide = true, .norm = true}};
  const std::vector<int32_t> sizes = quick ? std::vector<int32_t>{1, 64, 2048}
                                           : std::vector<int32_t>{1, 4, 8, 16, 64, 256, 2048, 8192};
  std::vector<std::unique_ptr<MatmulCase>> cases;
  for (const int32_t rows : sizes) {
    for (const LinearLayer& layer : layers) {
      if (!layer.wide || rows <= kMostLogitRows) {
        cases.push_back(std::make_unique<MatmulCase>(layer, rows, MatmulParts::kNone));
      }
      if (layer.norm && rows <= kMostFusedRows) {
        cases.push_back(std::make_unique<MatmulCase>(layer, rows, MatmulParts::kFused));
        cases.push_back(std::make_unique<MatmulCase>(layer, rows, MatmulParts::kSeparate));
      }
    }
  }
  return cases;
}

// Seconds of one call. The first repeat warms up: it makes plans and loads kernels.
absl::StatusOr<double> Time(const ExecContext& context, MatmulCase& bench) {
  std::vector<double> seconds;
  for (int32_t repeat = 0; repeat <= BenchCase::kRepeats; ++repeat) {
    const Timer timer(*context.queue);
    for (int32_t call = 0; call < BenchCase::kSteps * BenchCase::kLayers; ++call) {
      BATON_RETURN_IF_ERROR(
          bench.Run(context, call % BenchCase::kLayers, call / BenchCase::kLayers));
    }
    const double taken = timer.Seconds();
    if (repeat > 0) {
      seconds.push_back(taken / (BenchCase::kSteps * BenchCase::kLayers));
    }
  }
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  const auto median = seconds.begin() + BenchCase::kRepeats / 2;
  std::nth_element(seconds.begin(), median, seconds.end());
  return *median;
}

absl::StatusOr<Result> CheckAndTime(const ExecContext& context, MatmulCase& bench) {
  Result result;
  BATON_RETURN_IF_ERROR(bench.Prepare(*context.queue));
  BATON_ASSIGN_OR_RETURN(result.error, bench.Error(context));
  if (!(result.error <= kTolerance)) {  // NaN, too
    return absl::InternalError(absl::StrCat("differs from sums in double by ", result.error));
  }
  BATON_ASSIGN_OR_RETURN(result.seconds, Time(context, bench));
  return result;
}

const char* NameOf(MatmulParts parts) {
  switch (parts) {
    case MatmulParts::kNone:
      return "none";
    case MatmulParts::kFused:
      return "fused";
    case MatmulParts::kSeparate:
      return "separate";
  }
  return "";
}

void PrintRow(const MatmulCase& bench, const absl::StatusOr<Result>& result) {
  const LinearLayer& layer = bench.layer();
  absl::PrintF(
      "{\"op\":\"matmul\",\"layer\":\"%s\",\"parts\":\"%s\",\"rows\":%d,\"in_features\":%d,"
      "\"out_features\":%d",
      layer.name,
      NameOf(bench.parts()),
      bench.shape().rows,
      layer.in_features,
      layer.out_features);
  if (result.ok()) {
    const double operations = bench.operations() / result->seconds;
    const double bytes = bench.bytes() / result->seconds;
    absl::PrintF(
        ",\"error\":%.2e,\"us\":%.2f,\"tflop_per_s\":%.2f,\"share_of_756\":%.3f,"
        "\"gb_per_s\":%.1f,\"share_of_4250\":%.3f}\n",
        result->error,
        result->seconds * 1e6,
        operations * 1e-12,
        operations / 756e12,
        bytes * 1e-9,
        bytes / 4.25e12);
  } else {
    absl::PrintF(",\"failed\":\"%s\"}\n",
                 absl::StrReplaceAll(result.status().ToString(),
                                     {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", " "}}));
  }
  std::fflush(stdout);
}

// True when every case was measured.
absl::StatusOr<bool> MeasureMatmul(bool quick) {
  if (CudaOps() == nullptr) {
    return absl::FailedPreconditionError("no CUDA device");
  }
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceQueue> queue,
                         DeviceQueue::Create(kWorkspaceBytes));
  const ExecContext context = {.queue = queue.get()};
  bool measured = true;
  for (std::unique_ptr<MatmulCase>& bench : AllCases(quick)) {
    const absl::StatusOr<Result> result = CheckAndTime(context, *bench);
    PrintRow(*bench, result);
    measured = measured && result.ok();
    bench.reset();
  }
  return measured;
}

absl::StatusOr<bool> RunAll(bool quick) {
  BATON_ASSIGN_OR_RETURN(const bool products, MeasureMatmul(quick));
  BATON_ASSIGN_OR_RETURN(const bool attention, MeasurePrefillAttention(quick));
  return products && attention;
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
