// Encoding a prompt, taking a token and attending to a prompt in every KV format, beside `dense`,
// at Llama-3.1-8B's layer shape. Eight layers take turns, so that KV comes from memory as it does
// in a model. Bytes are those that the op touches, counted by an instrumented build of the portable
// back end (counting_ops.h); those of ShadowKV's encoder, a decomposition that takes minutes to
// count, are the prompt and its section, once each.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops/op_table.h"
#include "kernels/reference/reference_ops.h"
#include "tests/bench/kernels/bench_support.h"
#include "tests/kernels/counting/counting_ops.h"
#include "tests/kernels/counting/kv_layers.h"

namespace baton::kernels {
namespace {

constexpr int kLayers = 8;

enum class Op : uint8_t { kEncode, kAppend, kAttend };

bool RunOp(Op op, KvLayers& layers, const OpTable& ops, const ExecContext& exec, int layer) {
  switch (op) {
    case Op::kEncode:
      return layers.Encode(ops, exec, layer);
    case Op::kAppend:
      return layers.Append(ops, exec, layer);
    case Op::kAttend:
      return layers.Attend(ops, exec, layer);
  }
  return false;
}

// What `op` touches in one layer; the product's ops make the KV that it finds.
ByteCount CountOp(const std::string& format, int32_t tokens, Op op) {
  using Key = std::tuple<std::string, int32_t, Op>;
  static std::map<Key, ByteCount>& counts = *new std::map<Key, ByteCount>();
  const Key key = {format, tokens, op};
  if (const auto found = counts.find(key); found != counts.end()) {
    return found->second;
  }
  const auto layers = MakeKvLayers(format, tokens, 1);
  if (op == Op::kEncode && layers->prompt_bytes() > 0) {
    const int64_t source = int64_t{tokens} * LlamaLayer::kKvWidth * 2 * 2;  // bf16 keys and values
    return counts[key] = {.read = source, .written = static_cast<int64_t>(layers->prompt_bytes())};
  }
  ThreadPool pool(1);
  Buffer workspace(
      std::max(layers->workspace_bytes(CountingOps(), 1), layers->workspace_bytes(CpuOps(), 1)));
  const ExecContext exec = {.pool = &pool, .workspace = &workspace};
  bool ok = layers->Encode(CpuOps(), exec, 0) && layers->Append(CpuOps(), exec, 0);
  const ByteCount bytes =
      CountBytes([&] { ok = ok && RunOp(op, *layers, CountingOps(), exec, 0); });
  return counts[key] = ok ? bytes : ByteCount{};
}

// Whether the reference, on layers that it made itself, gives the same. Not for shadowkv, whose
// reference encoder is a whole decomposition and takes minutes; its steps are checked on the same
// bytes in shadowkv_bench.
bool AnswerIsRight(const std::string& format, int32_t tokens, const KvLayers& layers) {
  if (format == "shadowkv") {
    return true;
  }
  const auto want = MakeKvLayers(format, tokens, 1);
  ThreadPool pool(1);
  Buffer workspace(want->workspace_bytes(ReferenceOps(), 1));
  const ExecContext exec = {.pool = &pool, .workspace = &workspace};
  return want->Encode(ReferenceOps(), exec, 0) && want->Append(ReferenceOps(), exec, 0) &&
         want->Attend(ReferenceOps(), exec, 0) && RelativeError(layers.out(), want->out()) < 1e-4;
}

// The layers of a format, made once for all benchmarks.
struct Prepared {
  std::unique_ptr<KvLayers> layers;
  Buffer workspace;
  bool right = false;
};

Prepared& Prepare(const std::string& format, int32_t tokens) {
  static std::map<std::pair<std::string, int32_t>, Prepared>& all =
      *new std::map<std::pair<std::string, int32_t>, Prepared>();
  Prepared& prepared = all[{format, tokens}];
  if (prepared.layers == nullptr) {
    KvLayers& layers = *(prepared.layers = MakeKvLayers(format, tokens, kLayers));
    prepared.workspace = Buffer(layers.workspace_bytes(CpuOps(), 2));
    const ExecContext exec = {.pool = Machine(2).context.pool, .workspace = &prepared.workspace};
    prepared.right = true;
    for (int layer = 0; layer < kLayers; ++layer) {
      prepared.right = prepared.right && layers.Encode(CpuOps(), exec, layer) &&
                       layers.Append(CpuOps(), exec, layer);
    }
    prepared.right =
        prepared.right && layers.Attend(CpuOps(), exec, 0) && AnswerIsRight(format, tokens, layers);
  }
  return prepared;
}

void Run(benchmark::State& state, const std::string& format, Op op) {
  const auto tokens = static_cast<int32_t>(state.range(0));
  BenchMachine& machine = Machine(state.range(1));
  Prepared& prepared = Prepare(format, tokens);
  const ExecContext exec = {.pool = machine.context.pool, .workspace = &prepared.workspace};
  bool ok = prepared.right;
  if (!ok) {
    state.SkipWithError("wrong answer");
    return;
  }
  int layer = 0;
  for (auto _ : state) {
    ok = ok && RunOp(op, *prepared.layers, CpuOps(), exec, layer);
    layer = (layer + 1) % kLayers;
  }
  const ByteCount bytes = CountOp(format, tokens, op);
  Report(state, machine.limits, 0.0, static_cast<double>(bytes.total()));
  state.counters["read"] = static_cast<double>(bytes.read);
  state.counters["written"] = static_cast<double>(bytes.written);
}

void Register() {
  struct Named {
    const char* name;
    Op op;
  };
  for (const Named& named :
       {Named{"Encode", Op::kEncode}, Named{"Append", Op::kAppend}, Named{"Attend", Op::kAttend}}) {
    for (const char* format : {"dense", "fp8", "diffkv", "shadowkv", "hidden", "hidden8"}) {
      const bool decodes = std::string(format).starts_with("hidden") && named.op == Op::kAttend;
      const std::string title = std::string(decodes ? "Decode" : named.name) + "/" + format;
      benchmark::RegisterBenchmark(
          title.c_str(),
          [format, op = named.op](benchmark::State& state) { Run(state, format, op); })
          ->ArgNames({"tokens", "threads"})
          ->Args({8192, 1})
          ->Args({8192, 2})
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace baton::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  baton::kernels::Register();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
