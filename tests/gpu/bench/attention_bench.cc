// Decode attention and the appends before it at the shapes of Llama-3.1-8B and Qwen2.5-7B: bytes a
// second and their share of what the device reads, one JSON row a case (measure.h).
//
//   gpu_attention_bench [--quick] [--op=PREFIX] [--rows=N]
//
// --op: only ops whose name begins so; --rows: only cases of so many sequences.
//
// Every case is checked against the CPU back end before it is timed. One that fails has a row that
// says why; the others go on, and the status is 1.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "common/base/status_macros.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/dense_attention_case.h"
#include "tests/gpu/bench/device_limits.h"
#include "tests/gpu/bench/diffkv_append_case.h"
#include "tests/gpu/bench/diffkv_attention_case.h"
#include "tests/gpu/bench/measure.h"
#include "tests/gpu/bench/shadowkv_attention_case.h"
#include "tests/gpu/bench/shadowkv_load.h"
#include "tests/gpu/bench/shadowkv_select_case.h"

namespace baton::kernels::cuda {
namespace {

using Cases = std::vector<std::unique_ptr<BenchCase>>;

constexpr size_t kWorkspaceBytes = size_t{512} << 20;
// Steps from one that scores tokens to the next.
constexpr int32_t kEvery = 16;

BenchShape Named(BenchShape shape, const char* op, const char* format, const char* variant) {
  shape.op = op;
  shape.format = format;
  shape.variant = variant;
  return shape;
}

void AddDiffKvCases(const BenchShape& shape, const char* format, double high_share, Cases& cases) {
  cases.push_back(std::make_unique<DiffKvAttentionCase>(
      Named(shape, "diffkv_attention", format, "every=16"), high_share, kEvery));
  cases.push_back(std::make_unique<DiffKvAttentionCase>(
      Named(shape, "diffkv_attention", format, "unscored"), high_share, 0));
  cases.push_back(std::make_unique<DiffKvAppendCase>(
      Named(shape, "diffkv_append", format, "sweep"), high_share, true));
  cases.push_back(std::make_unique<DiffKvAppendCase>(
      Named(shape, "diffkv_append", format, "no sweep"), high_share, false));
}

// Attention with values in the host's memory.
void AddHostValueCases(const BenchShape& shape, Cases& cases) {
  for (const int32_t bits : {4, 16}) {
    const char* format = bits == 4 ? "rank 160, V4 on the host" : "rank 160, bf16 on the host";
    for (const double hits : {0.0, 0.6}) {
      cases.push_back(std::make_unique<ShadowKvAttentionCase>(
          Named(shape, "shadowkv_attention", format, hits == 0.0 ? "hits=0" : "hits=0.6"),
          hits,
          ShadowKvCodes{.value_bits = bits, .values_on_host = true}));
    }
  }
}

// Choice of chunks by landmarks of either kind.
void AddSelectCases(const BenchShape& shape, Cases& cases) {
  for (const int32_t bits : {16, 8}) {
    const char* landmarks = bits == 16 ? "landmarks of bf16" : "landmarks of int8";
    cases.push_back(std::make_unique<ShadowKvSelectCase>(
        Named(shape, "shadowkv_select", landmarks, ""), ShadowKvCodes{.landmark_bits = bits}));
  }
}

// Llama-3.1-8B's shape, the one that ShadowKV's throughput was published for, unless a step would
// attend the whole sequence.
void AddShadowKvCases(const BenchShape& shape, Cases& cases) {
  if (shape.group != 4 || ShadowKvLoadOf(shape).layout.prefers_dense()) return;
  const char* format = "rank 160, V4";
  AddSelectCases(shape, cases);
  cases.push_back(std::make_unique<ShadowKvAttentionCase>(
      Named(shape, "shadowkv_attention", format, "hits=0"), 0.0));
  cases.push_back(std::make_unique<ShadowKvAttentionCase>(
      Named(shape, "shadowkv_attention", format, "hits=0.6"), 0.6));
  AddHostValueCases(shape, cases);
}

// As many sequences as an H200 holds with landmarks of bf16, and with such in 8 bits
// (gpu_model_bench --capacity).
void AddFullShadowKvCases(Cases& cases) {
  BenchShape shape = {.rows = 85, .tokens = 32768, .kv_heads = 8, .group = 4, .head_dim = 128};
  AddSelectCases(shape, cases);
  shape.rows = 94;
  AddShadowKvCases(shape, cases);
}

Cases AllCases(bool quick) {
  struct Size {
    int32_t rows;
    int32_t tokens;
  };
  std::vector<Size> sizes = {{64, 8192}};
  if (!quick) {
    sizes.insert(sizes.end(), {{8, 65536}, {1, 2048}, {1, 32768}, {16, 32768}});
  }
  Cases cases;
  for (const Size& size : sizes) {
    for (const int32_t group : {4, 7}) {
      const BenchShape shape = {.rows = size.rows,
                                .tokens = size.tokens,
                                .kv_heads = group == 7 ? 4 : 8,  // Qwen2.5-7B, Llama-3.1-8B
                                .group = group,
                                .head_dim = 128};
      cases.push_back(std::make_unique<DenseAttentionCase>(
          Named(shape, "paged_attention", "dense bf16", ""), DType::kBF16));
      cases.push_back(std::make_unique<DenseAttentionCase>(
          Named(shape, "paged_attention", "fp8", ""), DType::kF8E4M3));
      AddDiffKvCases(shape, "K8V4", 1.0, cases);
      AddDiffKvCases(shape, "15/85 K8V4/K4V2", 0.15, cases);
      AddShadowKvCases(shape, cases);
    }
  }
  AddFullShadowKvCases(cases);
  return cases;
}

// True when every case was measured.
absl::StatusOr<bool> RunAll(bool quick, std::string_view op, std::string_view rows) {
  if (CudaOps() == nullptr) {
    return absl::FailedPreconditionError("no CUDA device");
  }
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceQueue> queue,
                         DeviceQueue::Create(kWorkspaceBytes));
  const ExecContext context = {.queue = queue.get()};
  BATON_ASSIGN_OR_RETURN(const DeviceLimits limits, MeasureDevice(*queue));
  absl::PrintF("{\"bench\":\"device\",\"read_gb_per_s\":%.1f}\n",
               limits.read_bytes_per_second * 1e-9);
  const Measure measure(context, limits);
  bool measured = true;
  for (std::unique_ptr<BenchCase>& bench : AllCases(quick)) {
    const BenchShape& shape = bench->shape();
    const bool wanted = rows.empty() || rows == absl::StrCat(shape.rows);
    if (wanted && std::string_view(shape.op).starts_with(op)) {
      measured = measure.Run(*bench) && measured;
    }
    bench.reset();
  }
  return measured;
}

}  // namespace
}  // namespace baton::kernels::cuda

int main(int argc, char** argv) {
  constexpr std::string_view kOp = "--op=";
  constexpr std::string_view kRows = "--rows=";
  bool quick = false;
  std::string_view op;
  std::string_view rows;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    quick = quick || argument == "--quick";
    if (argument.starts_with(kOp)) op = argument.substr(kOp.size());
    if (argument.starts_with(kRows)) rows = argument.substr(kRows.size());
  }
  const absl::StatusOr<bool> measured = baton::kernels::cuda::RunAll(quick, op, rows);
  if (!measured.ok()) {
    std::fprintf(stderr, "%s\n", measured.status().ToString().c_str());
    return 1;
  }
  return *measured ? 0 : 1;
}
