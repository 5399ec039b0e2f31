// Format `shadowkv` on the CPU back end: encoding a prompt, and a decode step of one layer beside
// dense attention over the same tokens.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/bench/kernels/bench_support.h"

namespace baton::kernels {
namespace {

constexpr int32_t kPageTokens = 32;
constexpr int64_t kKeyRank = 64;
constexpr float kKeyNoise = 0.05f;
// Queries of successive steps: a random walk, so that selections overlap.
constexpr int64_t kQueries = 16;
constexpr float kQueryStep = 0.25f;

struct Geometry {
  int64_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t rank;
};
constexpr Geometry kLlama8B = {.heads = 32, .kv_heads = 8, .head_dim = 128, .rank = 160};
constexpr Geometry kSmall = {.heads = 4, .kv_heads = 2, .head_dim = 64, .rank = 64};

ShadowKvConfig MakeConfig(const Geometry& geometry, int32_t value_bits, int32_t budget) {
  return {.rank = geometry.rank,
          .chunk_tokens = 8,
          .budget_tokens = budget,
          .outlier_chunks = 24,
          .local_chunks = 4,
          .sink_chunks = 1,
          .value_bits = value_bits,
          .kv_heads = geometry.kv_heads,
          .head_dim = geometry.head_dim};
}

// One layer of one sequence: dense pages, its coded form and the queries.
class Problem {
 public:
  Problem(const Geometry& geometry, const ShadowKvConfig& config, int64_t tokens, int64_t threads)
      : machine_(Machine(threads)),
        geometry_(geometry),
        layout_(config, tokens),
        workspace_(std::max(
            CpuOps().workspace_bytes(static_cast<int>(threads), 1 << 16, 256),
            CpuOps().shadowkv_workspace_bytes(
                static_cast<int>(threads),
                {.config = config, .heads = geometry.heads, .max_tokens = tokens + kQueries}))),
        reference_workspace_(ReferenceOps().shadowkv_workspace_bytes(
            1, {.config = config, .heads = geometry.heads, .max_tokens = tokens + kQueries})) {
    context = {.pool = machine_.context.pool, .workspace = &workspace_};
    reference_context = {.pool = machine_.context.pool, .workspace = &reference_workspace_};
    MakeRope(tokens + kQueries);
    MakePages(tokens + kQueries);
    q_ = RandomFloats(static_cast<size_t>(kQueries * geometry.heads * geometry.head_dim), 5);
    const auto row = static_cast<size_t>(geometry.heads * geometry.head_dim);
    for (size_t i = row; i < q_.size(); ++i) {
      q_[i] = q_[i - row] + kQueryStep * q_[i];
    }
    prompt_ = Buffer(layout_.bytes);
    tail_ = Buffer(ShadowKvTailLayout(layout_, kQueries).bytes);
    cache_ = Buffer(ShadowKvCacheLayout(config, ShadowKvCachedValues::kDequantized).bytes);
    out.resize(row);
    ids.resize(static_cast<size_t>(config.kv_heads * config.budget_chunks()));
  }

  ShadowKvEncodeParams Encode() {
    return {.layout = layout_,
            .pages = {.base = pages_.data(), .layout = pages_layout_},
            .page_table = page_table_.data(),
            .rope = rope(),
            .prompt = prompt_.data()};
  }

  // Energy of the keys that the coefficients lack, over the energy of the noise in them.
  double ResidualOverNoise() const {
    const auto* coefficients =
        reinterpret_cast<const uint16_t*>(prompt_.data() + layout_.coded_begin);
    double coded = 0.0;
    for (int64_t i = 0; i < layout_.coded.tokens * layout_.config.rank; ++i) {
      const double a = BF16ToF32(coefficients[i]);
      coded += a * a;
    }
    double all = 0.0;
    for (int64_t t = 0; t < layout_.coded.tokens; ++t) {
      all += key_energy_[static_cast<size_t>(t)];
    }
    const double noise = double{kKeyNoise} * double{kKeyNoise} *
                         static_cast<double>(layout_.coded.tokens * layout_.config.width());
    return (all - coded) / noise;
  }

  // Appends the first generated token; its key and value are those of the dense pages' last.
  void Append() {
    const std::vector<float> kv = RandomFloats(static_cast<size_t>(layout_.config.width()), 7);
    sequence = {.layout = &layout_,
                .prompt = prompt_.data(),
                .tail = tail_.data(),
                .max_generated = kQueries,
                .position = static_cast<int32_t>(layout_.prompt_tokens),
                .cache = cache_.data(),
                .counters = &counters};
    if (!CpuOps()
             .shadowkv_append(context,
                              {.k = kv.data(),
                               .k_stride = layout_.config.width(),
                               .v = kv.data(),
                               .v_stride = layout_.config.width(),
                               .sequences = &sequence,
                               .num_sequences = 1,
                               .rope = rope()})
             .ok()) {
      std::abort();
    }
  }

  ShadowKvSelectParams Select(int64_t query) {
    return {.q = Query(query),
            .q_stride = geometry_.heads * geometry_.head_dim,
            .sequences = &sequence,
            .num_sequences = 1,
            .heads = geometry_.heads,
            .scale = Scale(),
            .chunk_ids = ids.data(),
            .chunk_ids_stride = layout_.config.budget_chunks()};
  }
  ShadowKvAttentionParams Attention(int64_t query) {
    return {.q = Query(query),
            .q_stride = geometry_.heads * geometry_.head_dim,
            .sequences = &sequence,
            .num_sequences = 1,
            .heads = geometry_.heads,
            .scale = Scale(),
            .chunk_ids = ids.data(),
            .chunk_ids_stride = layout_.config.budget_chunks(),
            .rope = rope(),
            .out = out.data(),
            .out_stride = geometry_.heads * geometry_.head_dim};
  }
  PagedAttentionParams Dense(int64_t query) {
    position_ = static_cast<int32_t>(layout_.prompt_tokens);
    rows_ = {.row_begin = 0, .row_count = 1, .page_table = page_table_.data()};
    return {.q = Query(query),
            .q_stride = geometry_.heads * geometry_.head_dim,
            .positions = &position_,
            .sequences = &rows_,
            .num_sequences = 1,
            .pages = {.base = pages_.data(), .layout = pages_layout_},
            .heads = geometry_.heads,
            .scale = Scale(),
            .out = out.data(),
            .out_stride = geometry_.heads * geometry_.head_dim};
  }

  // Selection and attention of one query against the reference on the same bytes.
  bool StepIsRight() {
    const bool ran = CpuOps().shadowkv_select(context, Select(0)).ok() &&
                     CpuOps().shadowkv_attention(context, Attention(0)).ok();
    const std::vector<int32_t> got_ids = ids;
    const std::vector<float> got = out;
    std::byte* cache = sequence.cache;
    sequence.cache = nullptr;
    const bool checked = ReferenceOps().shadowkv_select(reference_context, Select(0)).ok() &&
                         ReferenceOps().shadowkv_attention(reference_context, Attention(0)).ok();
    sequence.cache = cache;
    counters = {};
    return ran && checked && got_ids == ids && RelativeError(got, out) < 1e-2;
  }

  const ShadowKvPromptLayout& layout() const { return layout_; }

  ExecContext context;
  ExecContext reference_context;
  ShadowKvSequence sequence;
  ShadowKvCounters counters;
  std::vector<int32_t> ids;
  std::vector<float> out;

 private:
  const float* Query(int64_t index) const {
    return q_.data() + index % kQueries * geometry_.heads * geometry_.head_dim;
  }
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(geometry_.head_dim)); }
  ShadowKvRope rope() const {
    return {.cosines = cosines_.data(),
            .sines = sines_.data(),
            .positions = layout_.prompt_tokens + kQueries};
  }

  void MakeRope(int64_t tokens) {
    const int64_t half = geometry_.head_dim / 2;
    std::vector<int32_t> positions(static_cast<size_t>(tokens));
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<float> frequencies(static_cast<size_t>(half));
    for (int64_t i = 0; i < half; ++i) {
      frequencies[static_cast<size_t>(i)] =
          std::pow(500000.0f, -static_cast<float>(i) / static_cast<float>(half));
    }
    cosines_.resize(static_cast<size_t>(tokens * half));
    sines_.resize(cosines_.size());
    if (!CpuOps()
             .rope_angles(context,
                          {.positions = positions.data(),
                           .inverse_frequencies = frequencies.data(),
                           .rows = tokens,
                           .half_dim = half,
                           .cosines = cosines_.data(),
                           .sines = sines_.data()})
             .ok()) {
      std::abort();
    }
  }

  // Keys of rank kKeyRank with falling energy plus noise, rotated; values at random.
  void MakePages(int64_t tokens) {
    const int64_t width = layout_.config.width();
    std::vector<float> keys = RandomFloats(static_cast<size_t>(tokens * width), 1);
    for (float& key : keys) {
      key *= kKeyNoise;
    }
    const std::vector<float> factors = RandomFloats(static_cast<size_t>(tokens * kKeyRank), 2);
    const std::vector<float> directions = RandomFloats(static_cast<size_t>(kKeyRank * width), 3);
    for (int64_t t = 0; t < tokens; ++t) {
      float* key = keys.data() + t * width;
      for (int64_t j = 0; j < kKeyRank; ++j) {
        const float factor =
            factors[static_cast<size_t>(t * kKeyRank + j)] / static_cast<float>(j + 1);
        const float* direction = directions.data() + j * width;
        for (int64_t i = 0; i < width; ++i) {
          key[i] += factor * direction[i];
        }
      }
      key_energy_.push_back(std::inner_product(key, key + width, key, 0.0));
    }
    if (!CpuOps()
             .rope(context,
                   {.x = keys.data(),
                    .x_stride = width,
                    .cosines = cosines_.data(),
                    .sines = sines_.data(),
                    .rows = tokens,
                    .heads = geometry_.kv_heads,
                    .half_dim = geometry_.head_dim / 2})
             .ok()) {
      std::abort();
    }
    WritePages(tokens, keys, RandomFloats(static_cast<size_t>(tokens * width), 4));
  }

  void WritePages(int64_t tokens,
                  const std::vector<float>& keys,
                  const std::vector<float>& values) {
    pages_layout_ = {
        .page_tokens = kPageTokens, .kv_heads = geometry_.kv_heads, .head_dim = geometry_.head_dim};
    page_table_.resize(static_cast<size_t>(pages_layout_.pages_for(tokens)));
    std::iota(page_table_.begin(), page_table_.end(), 0);
    pages_ = Buffer(pages_layout_.stride_bytes() * page_table_.size());
    std::vector<int32_t> positions(static_cast<size_t>(tokens));
    std::iota(positions.begin(), positions.end(), 0);
    const SequenceRows rows = {.row_begin = 0,
                               .row_count = static_cast<int32_t>(tokens),
                               .page_table = page_table_.data()};
    if (!CpuOps()
             .kv_write(context,
                       {.k = keys.data(),
                        .k_stride = layout_.config.width(),
                        .v = values.data(),
                        .v_stride = layout_.config.width(),
                        .positions = positions.data(),
                        .sequences = &rows,
                        .num_sequences = 1,
                        .pages = {.base = pages_.data(), .layout = pages_layout_}})
             .ok()) {
      std::abort();
    }
  }

  BenchMachine& machine_;
  Geometry geometry_;
  ShadowKvPromptLayout layout_;
  Buffer workspace_;
  Buffer reference_workspace_;
  DensePageLayout pages_layout_;
  Buffer pages_;
  std::vector<int32_t> page_table_;
  std::vector<float> cosines_;
  std::vector<float> sines_;
  std::vector<double> key_energy_;
  std::vector<float> q_;
  Buffer prompt_;
  Buffer tail_;
  Buffer cache_;
  int32_t position_ = 0;
  SequenceRows rows_;
};

void Encode(benchmark::State& state) {
  const Geometry& geometry = state.range(0) != 0 ? kLlama8B : kSmall;
  const ShadowKvConfig config = MakeConfig(geometry, static_cast<int32_t>(state.range(2)), 1024);
  Problem problem(geometry, config, state.range(1), state.range(3));
  const ShadowKvEncodeParams params = problem.Encode();
  if (!CpuOps().shadowkv_encode(problem.context, params).ok() ||
      problem.ResidualOverNoise() > 1.02) {
    state.SkipWithError("wrong answer");
    return;
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(CpuOps().shadowkv_encode(problem.context, params).ok());
  }
  state.counters["bytes"] = static_cast<double>(params.layout.bytes);
  const double dense = static_cast<double>(state.range(1) * config.width()) * 4.0;
  state.counters["of_dense"] = static_cast<double>(params.layout.bytes) / dense;
}

// What a step runs.
enum class Part : uint8_t { kSelect, kAttend, kAttendWithoutCache, kDense };

// One step of one sequence in one layer.
void Step(benchmark::State& state, Part part) {
  const Geometry& geometry = state.range(0) != 0 ? kLlama8B : kSmall;
  const ShadowKvConfig config = MakeConfig(
      geometry, static_cast<int32_t>(state.range(2)), static_cast<int32_t>(state.range(3)));
  Problem problem(geometry, config, state.range(1), state.range(4));
  const bool encoded = CpuOps().shadowkv_encode(problem.context, problem.Encode()).ok();
  problem.Append();
  if (!encoded || !problem.StepIsRight()) {
    state.SkipWithError("wrong answer");
    return;
  }
  if (part == Part::kAttendWithoutCache) {
    problem.sequence.cache = nullptr;
  }
  int64_t query = 0;
  for (auto _ : state) {
    ++query;
    if (part == Part::kDense) {
      benchmark::DoNotOptimize(
          CpuOps().paged_attention(problem.context, problem.Dense(query)).ok());
      continue;
    }
    if (part != Part::kSelect) {
      state.PauseTiming();
    }
    benchmark::DoNotOptimize(CpuOps().shadowkv_select(problem.context, problem.Select(query)).ok());
    if (part != Part::kSelect) {
      state.ResumeTiming();
      benchmark::DoNotOptimize(
          CpuOps().shadowkv_attention(problem.context, problem.Attention(query)).ok());
    }
  }
  const ShadowKvCounters& counters = problem.counters;
  if (counters.hits + counters.misses > 0) {
    state.counters["hit_rate"] =
        static_cast<double>(counters.hits) / static_cast<double>(counters.hits + counters.misses);
    state.counters["tokens/head"] = static_cast<double>(counters.attended_tokens) /
                                    static_cast<double>(state.iterations() * config.kv_heads);
  }
}

void EncodeArgs(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"llama8b", "tokens", "value_bits", "threads"})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond)
      ->Args({0, 8192, 16, 1})
      ->Args({1, 8192, 16, 1})
      ->Args({1, 8192, 4, 1})
      ->Args({1, 8192, 4, 2});
}
BENCHMARK(Encode)->Apply(EncodeArgs);

void StepArgs(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"llama8b", "tokens", "value_bits", "budget", "threads"})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond)
      ->Args({0, 8192, 16, 512, 1})
      ->Args({1, 8192, 16, 1024, 1})
      ->Args({1, 8192, 4, 1024, 1})
      ->Args({1, 8192, 4, 1024, 2});
}
BENCHMARK_CAPTURE(Step, select, Part::kSelect)->Apply(StepArgs);
BENCHMARK_CAPTURE(Step, attend, Part::kAttend)->Apply(StepArgs);
BENCHMARK_CAPTURE(Step, attend_without_cache, Part::kAttendWithoutCache)->Apply(StepArgs);
BENCHMARK_CAPTURE(Step, dense, Part::kDense)->Apply(StepArgs);

}  // namespace
}  // namespace baton::kernels

BENCHMARK_MAIN();
