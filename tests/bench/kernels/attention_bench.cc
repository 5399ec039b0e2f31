// Paged attention of the CPU back end: prefill chunks of long prompts and decode rows.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/fp8.h"
#include "kernels/ops/params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/bench/kernels/bench_support.h"

namespace baton::kernels {
namespace {

constexpr int32_t kPageTokens = 32;

struct Problem {
  int64_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int64_t sequences;
  int64_t rows;     // per sequence
  int64_t context;  // tokens per sequence, the rows included
  DType dtype;      // of the pages: bf16 or f8e4m3

  DensePageLayout layout = {};
  std::vector<float> q = {};
  std::vector<float> out = {};
  std::vector<int32_t> positions = {};
  std::vector<int32_t> page_table = {};
  std::vector<SequenceRows> slices = {};
  Buffer pages = {};

  void Fill() {
    layout = {
        .page_tokens = kPageTokens, .kv_heads = kv_heads, .head_dim = head_dim, .dtype = dtype};
    const int64_t pages_each = layout.pages_for(context);
    pages = Buffer(layout.stride_bytes() * static_cast<size_t>(pages_each * sequences));
    FillPages();
    page_table.resize(static_cast<size_t>(pages_each * sequences));
    std::iota(page_table.begin(), page_table.end(), 0);
    q = RandomFloats(static_cast<size_t>(sequences * rows * heads * head_dim), 4);
    out.resize(q.size());
    for (int64_t s = 0; s < sequences; ++s) {
      slices.push_back({.row_begin = static_cast<int32_t>(s * rows),
                        .row_count = static_cast<int32_t>(rows),
                        .page_table = page_table.data() + s * pages_each});
      for (int64_t r = 0; r < rows; ++r) {
        positions.push_back(static_cast<int32_t>(context - rows + r));
      }
    }
  }

  void FillPages() {
    if (dtype == DType::kBF16) {
      const std::vector<uint16_t> kv = RandomBF16(pages.size() / sizeof(uint16_t), 3);
      std::copy(kv.begin(), kv.end(), pages.as<uint16_t>());
      return;
    }
    const size_t scales = layout.key_scale_offset(0, 0);
    for (size_t page = 0; page < pages.size(); page += layout.stride_bytes()) {
      std::byte* bytes = pages.data() + page;
      const std::vector<float> kv = RandomFloats(scales, static_cast<uint32_t>(page));
      EncodeFp8(kv.data(), static_cast<int64_t>(scales), reinterpret_cast<uint8_t*>(bytes));
      std::fill(reinterpret_cast<float*>(bytes + scales),
                reinterpret_cast<float*>(bytes + layout.page_bytes()),
                0.0005f);
    }
  }

  PagedAttentionParams Params() {
    return {.q = q.data(),
            .q_stride = heads * head_dim,
            .positions = positions.data(),
            .sequences = slices.data(),
            .num_sequences = sequences,
            .pages = {.base = pages.data(), .layout = layout},
            .heads = heads,
            .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
            .out = out.data(),
            .out_stride = heads * head_dim};
  }

  // The last row against the reference.
  bool IsRight(const ExecContext& exec) {
    PagedAttentionParams params = Params();
    std::vector<float> expected(out.size());
    SequenceRows last = slices.back();
    last.row_begin += last.row_count - 1;
    last.row_count = 1;
    params.sequences = &last;
    params.num_sequences = 1;
    params.out = expected.data();
    const bool ok = ReferenceOps().paged_attention(exec, params).ok();
    const auto row = static_cast<std::ptrdiff_t>(heads * head_dim);
    return ok && RelativeError({out.end() - row, out.end()},
                               {expected.end() - row, expected.end()}) < 1e-5;
  }
};

void Run(benchmark::State& state, Problem& problem, int64_t threads) {
  BenchMachine& machine = Machine(threads);
  problem.Fill();
  const PagedAttentionParams params = problem.Params();
  if (!CpuOps().paged_attention(machine.context, params).ok() ||
      !problem.IsRight(machine.context)) {
    state.SkipWithError("wrong answer");
    return;
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(CpuOps().paged_attention(machine.context, params).ok());
  }
  double keys_seen = 0.0;
  for (const int32_t position : problem.positions) {
    keys_seen += position + 1;
  }
  const double flops = 4.0 * static_cast<double>(problem.heads * problem.head_dim) * keys_seen;
  Report(state, machine.limits, flops, static_cast<double>(problem.pages.size()));
}

DType DtypeOfBits(int64_t bits) { return bits == 8 ? DType::kF8E4M3 : DType::kBF16; }

// The last `rows` rows of a prompt of `context` tokens.
void Prefill(benchmark::State& state) {
  Problem problem{.heads = state.range(0),
                  .kv_heads = static_cast<int32_t>(state.range(1)),
                  .head_dim = static_cast<int32_t>(state.range(2)),
                  .sequences = 1,
                  .rows = state.range(4),
                  .context = state.range(3),
                  .dtype = DtypeOfBits(state.range(6))};
  Run(state, problem, state.range(5));
}

// One row of each of `sequences` sequences.
void Decode(benchmark::State& state) {
  Problem problem{.heads = state.range(0),
                  .kv_heads = static_cast<int32_t>(state.range(1)),
                  .head_dim = static_cast<int32_t>(state.range(2)),
                  .sequences = state.range(4),
                  .rows = 1,
                  .context = state.range(3),
                  .dtype = DtypeOfBits(state.range(6))};
  Run(state, problem, state.range(5));
  state.counters["us/row"] =
      benchmark::Counter(static_cast<double>(state.iterations() * state.range(4)) * 1e-6,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

BENCHMARK(Prefill)
    ->ArgNames({"heads", "kv_heads", "head_dim", "context", "rows", "threads", "bits"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->Args({4, 2, 64, 2048, 2048, 1, 16})
    ->Args({4, 2, 64, 8192, 8192, 1, 16})
    ->Args({4, 2, 64, 2048, 2048, 2, 16})
    ->Args({4, 2, 64, 8192, 256, 2, 16})
    ->Args({4, 2, 64, 8192, 4096, 2, 16})
    ->Args({4, 2, 64, 8192, 8192, 2, 16})
    ->Args({4, 2, 64, 8192, 8192, 2, 8})
    ->Args({4, 2, 64, 16384, 16384, 2, 16})
    ->Args({32, 8, 128, 2048, 2048, 2, 16})
    ->Args({32, 8, 128, 2048, 2048, 2, 8});

BENCHMARK(Decode)
    ->ArgNames({"heads", "kv_heads", "head_dim", "context", "sequences", "threads", "bits"})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond)
    ->Args({4, 2, 64, 2048, 1, 1, 16})
    ->Args({4, 2, 64, 8192, 1, 1, 16})
    ->Args({4, 2, 64, 8192, 1, 1, 8})
    ->Args({4, 2, 64, 8192, 1, 2, 16})
    ->Args({4, 2, 64, 8192, 8, 2, 16})
    ->Args({4, 2, 64, 8192, 8, 2, 8})
    ->Args({4, 2, 64, 2048, 64, 2, 16})
    ->Args({32, 8, 128, 4096, 8, 2, 16})
    ->Args({32, 8, 128, 4096, 8, 2, 8});

}  // namespace
}  // namespace baton::kernels

BENCHMARK_MAIN();
