// KV format `diffkv` of the CPU back end in one layer of Llama-3.1-8B's geometry: encoding a
// prompt, appending a token, and decode attention with dense pages beside it. Several layers take
// turns, so that pages come from memory as they do in a model.
#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/bench/kernels/bench_support.h"

namespace baton::kernels {
namespace {

constexpr int64_t kHeads = 32;
constexpr int32_t kKvHeads = 8;
constexpr int32_t kHeadDim = 128;
constexpr int kLayers = 8;
constexpr float kScale = 0.08838834764f;
constexpr DiffKvGeometry kGeometry = {.kv_heads = kKvHeads, .head_dim = kHeadDim};
constexpr DensePageLayout kDense = {
    .page_tokens = 32, .kv_heads = kKvHeads, .head_dim = kHeadDim, .dtype = DType::kBF16};

// Dense pages of `layers` layers of one sequence.
struct DensePrompt {
  DensePrompt(int32_t tokens, int layers)
      : pages_each(kDense.pages_for(tokens)),
        pages(kDense.stride_bytes() * static_cast<size_t>(pages_each * layers)),
        table(static_cast<size_t>(pages_each * layers)) {
    const std::vector<uint16_t> kv = RandomBF16(kDense.stride_bytes() / 2, 3);
    for (size_t at = 0; at < pages.size(); at += kDense.stride_bytes()) {
      std::copy(kv.begin(), kv.end(), pages.as<uint16_t>() + at / 2);
    }
    std::iota(table.begin(), table.end(), 0);
  }
  DensePages Pages() { return {.base = pages.data(), .layout = kDense}; }
  const int32_t* Table(int layer) const { return table.data() + int64_t{layer} * pages_each; }

  int32_t pages_each;
  Buffer pages;
  std::vector<int32_t> table;
};

// `layers` layers of one sequence, 15% of the tokens K8V4 and 85% K4V2.
struct QuantizedPrompt {
  QuantizedPrompt(int32_t tokens_in, int layers, int32_t room)
      : tokens(tokens_in),
        columns(kGeometry.columns_for(tokens_in + room)),
        dense(tokens_in, 1),
        pool(kGeometry.page_bytes() * static_cast<size_t>(columns * kKvHeads * layers)),
        table(static_cast<size_t>(columns * kKvHeads * layers)),
        counts(static_cast<size_t>(kKvHeads * kDiffKvTiers * layers)),
        ids(table.size()),
        classes(static_cast<size_t>(kKvHeads * tokens)),
        scores(static_cast<size_t>(kKvHeads * tokens), 1.0f),
        probabilities(static_cast<size_t>(kKvHeads * (tokens + room))),
        scratch(static_cast<size_t>(DiffKvScratchFloats(kGeometry, kHeads, tokens + room))),
        q(RandomFloats(kHeads * kHeadDim, 4)),
        out(q.size()) {
    std::iota(ids.begin(), ids.end(), 0);
    lease = {.ids = ids.data(), .count = static_cast<int32_t>(ids.size())};
    for (int32_t token = 0; token < tokens; ++token) {
      const bool high = token % 20 < 3;
      for (int32_t head = 0; head < kKvHeads; ++head) {
        classes[static_cast<size_t>(int64_t{head} * tokens + token)] =
            high ? DiffKvClass::kHigh : DiffKvClass::kLow;
        for (int layer = 0; layer < layers; ++layer) {
          ++Layer(layer).token_counts[head * kDiffKvTiers + (high ? kDiffKvHigh : kDiffKvLow)];
        }
      }
    }
  }

  DiffKvLayer Layer(int layer) {
    return {.page_table = table.data() + int64_t{layer} * columns * kKvHeads,
            .token_counts = counts.data() + int64_t{layer} * kKvHeads * kDiffKvTiers,
            .columns = columns};
  }
  DiffKvPages Pages() { return {.base = pool.data(), .geometry = kGeometry}; }
  bool Assign(const OpTable& ops, const ExecContext& context, int layer) {
    return ops
        .diffkv_assign_pages(context,
                             {.geometry = kGeometry, .layer = Layer(layer), .lease = &lease})
        .ok();
  }
  bool Encode(const OpTable& ops, const ExecContext& context, int layer) {
    return ops
        .diffkv_encode(context,
                       {.source = dense.Pages(),
                        .source_table = dense.Table(0),
                        .tokens = tokens,
                        .classes = classes.data(),
                        .scores = scores.data(),
                        .score_stride = tokens,
                        .layer = Layer(layer),
                        .pages = Pages()})
        .ok();
  }
  bool Attend(const OpTable& ops, const ExecContext& context, int layer) {
    DiffKvAttentionRow row = {
        .layer = Layer(layer),
        .position = tokens,
        .probabilities = probabilities.data(),
        .probability_stride = static_cast<int64_t>(probabilities.size()) / kKvHeads};
    return ops
        .diffkv_attention(context,
                          {.q = q.data(),
                           .q_stride = static_cast<int64_t>(q.size()),
                           .out = out.data(),
                           .out_stride = static_cast<int64_t>(out.size()),
                           .scratch = scratch.data(),
                           .rows = &row,
                           .num_rows = 1,
                           .pages = Pages(),
                           .heads = kHeads,
                           .scale = kScale})
        .ok();
  }
  // Bytes of the pages held in one layer.
  double Bytes() {
    double pages = 0.0;
    for (int32_t i = 0; i < kKvHeads * kDiffKvTiers; ++i) {
      pages += kGeometry.pages_for(i % kDiffKvTiers, counts[static_cast<size_t>(i)]);
    }
    return pages * static_cast<double>(kGeometry.page_bytes());
  }

  int32_t tokens;
  int32_t columns;
  DensePrompt dense;
  Buffer pool;
  std::vector<int32_t> table;
  std::vector<int32_t> counts;
  std::vector<int32_t> ids;
  DiffKvLease lease;
  std::vector<DiffKvClass> classes;
  std::vector<float> scores;
  std::vector<float> probabilities;
  std::vector<float> scratch;
  std::vector<float> q;
  std::vector<float> out;
};

void Encode(benchmark::State& state) {
  const auto tokens = static_cast<int32_t>(state.range(0));
  BenchMachine& machine = Machine(state.range(1));
  QuantizedPrompt want(tokens, 1, 0);
  QuantizedPrompt got(tokens, 1, 0);
  bool ok = want.Assign(ReferenceOps(), machine.context, 0) &&
            want.Encode(ReferenceOps(), machine.context, 0) &&
            got.Assign(CpuOps(), machine.context, 0) && got.Encode(CpuOps(), machine.context, 0);
  if (!ok || !std::equal(got.pool.bytes().begin(), got.pool.bytes().end(), want.pool.data())) {
    state.SkipWithError("wrong answer");
    return;
  }
  for (auto _ : state) {
    ok = ok && got.Encode(CpuOps(), machine.context, 0);
  }
  const double elements = 2.0 * kKvHeads * kHeadDim * tokens;
  Report(state, machine.limits, 0.0, 2.0 * elements + got.Bytes());
  state.counters["elements/s"] = benchmark::Counter(
      elements * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void Append(benchmark::State& state) {
  const auto tokens = static_cast<int32_t>(state.range(0));
  constexpr int32_t kRoom = 4096;
  BenchMachine& machine = Machine(state.range(1));
  QuantizedPrompt prompt(tokens, kLayers, kRoom);
  bool ok = true;
  for (int layer = 0; layer < kLayers; ++layer) {
    ok = ok && prompt.Assign(CpuOps(), machine.context, layer) &&
         prompt.Encode(CpuOps(), machine.context, layer);
  }
  const std::vector<float> kv = RandomFloats(2 * kKvHeads * kHeadDim, 9);
  std::vector<DiffKvAction> actions(kKvHeads);
  const UnobservedRange unobserved = DiffKvUnobserved(0, tokens);
  const std::vector<int32_t> counts = prompt.counts;
  const int32_t used = prompt.lease.used;
  int32_t step = 0;
  double bytes = 0.0;
  for (auto _ : state) {
    if (step == kRoom * kLayers) {  // back to the prompt's counts: the pages are overwritten again
      prompt.counts = counts;
      prompt.lease.used = used;
      step = 0;
    }
    DiffKvAppendRow row = {.layer = prompt.Layer(step % kLayers),
                           .policy = {.unobserved = &unobserved, .unobserved_count = 1},
                           .position = tokens + step / kLayers,
                           .lease = &prompt.lease,
                           .actions = actions.data()};
    ok =
        ok &&
        CpuOps()
            .diffkv_sweep(machine.context, {.rows = &row, .num_rows = 1, .pages = prompt.Pages()})
            .ok() &&
        CpuOps()
            .diffkv_take_pages(machine.context,
                               {.rows = &row, .layers = 1, .sequences = 1, .pages = prompt.Pages()})
            .ok() &&
        CpuOps()
            .diffkv_append(machine.context,
                           {.k = kv.data(),
                            .v = kv.data() + kKvHeads * kHeadDim,
                            .stride = kKvHeads * kHeadDim,
                            .rows = &row,
                            .num_rows = 1,
                            .pages = prompt.Pages()})
            .ok();
    const int32_t stored = tokens + step / kLayers;
    bytes += 8.0 * kKvHeads * stored;  // score and position of every token
    ++step;
  }
  if (!ok) {
    state.SkipWithError("append failed");
    return;
  }
  Report(state, machine.limits, 0.0, bytes / static_cast<double>(state.iterations()));
}

void Attention(benchmark::State& state) {
  const auto tokens = static_cast<int32_t>(state.range(0));
  BenchMachine& machine = Machine(state.range(1));
  QuantizedPrompt prompt(tokens, kLayers, 0);
  bool ok = true;
  for (int layer = 0; layer < kLayers; ++layer) {
    ok = ok && prompt.Assign(CpuOps(), machine.context, layer) &&
         prompt.Encode(CpuOps(), machine.context, layer);
  }
  ok = ok && prompt.Attend(ReferenceOps(), machine.context, 0);
  const std::vector<float> want = prompt.out;
  ok = ok && prompt.Attend(CpuOps(), machine.context, 0);
  if (!ok || RelativeError(prompt.out, want) > 1e-5) {
    state.SkipWithError("wrong answer");
    return;
  }
  int layer = 0;
  for (auto _ : state) {
    ok = ok && prompt.Attend(CpuOps(), machine.context, layer);
    layer = (layer + 1) % kLayers;
  }
  Report(state, machine.limits, 4.0 * kHeads * kHeadDim * tokens, prompt.Bytes());
}

void DenseAttention(benchmark::State& state) {
  const auto tokens = static_cast<int32_t>(state.range(0));
  BenchMachine& machine = Machine(state.range(1));
  DensePrompt prompt(tokens, kLayers);
  const std::vector<float> q = RandomFloats(kHeads * kHeadDim, 4);
  std::vector<float> out(q.size());
  const int32_t position = tokens - 1;
  int layer = 0;
  const auto attend = [&](const OpTable& ops) {
    const SequenceRows sequence = {
        .row_begin = 0, .row_count = 1, .page_table = prompt.Table(layer)};
    layer = (layer + 1) % kLayers;
    return ops
        .paged_attention(machine.context,
                         {.q = q.data(),
                          .q_stride = kHeads * kHeadDim,
                          .positions = &position,
                          .sequences = &sequence,
                          .num_sequences = 1,
                          .pages = prompt.Pages(),
                          .heads = kHeads,
                          .scale = kScale,
                          .out = out.data(),
                          .out_stride = kHeads * kHeadDim})
        .ok();
  };
  bool ok = attend(ReferenceOps());
  const std::vector<float> want = out;
  ok = ok && attend(CpuOps());
  if (!ok || RelativeError(out, want) > 1e-5) {  // layers hold the same numbers
    state.SkipWithError("wrong answer");
    return;
  }
  for (auto _ : state) {
    ok = ok && attend(CpuOps());
  }
  Report(state,
         machine.limits,
         4.0 * kHeads * kHeadDim * tokens,
         static_cast<double>(kDense.stride_bytes()) * prompt.pages_each);
}

void Sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"tokens", "threads"})->UseRealTime()->Unit(benchmark::kMicrosecond);
  for (const int64_t threads : {1, 2}) {
    bench->Args({8192, threads});
  }
}

BENCHMARK(Encode)->Apply(Sizes);
BENCHMARK(Append)->Apply(Sizes);
BENCHMARK(Attention)->Apply(Sizes);
BENCHMARK(DenseAttention)->Apply(Sizes);

}  // namespace
}  // namespace baton::kernels

BENCHMARK_MAIN();
