// Joint coefficients of format `shadowkv` on the CPU back end, for a group of four upper layers of
// Llama-3.1-8B's shape, which is the widest group there is: factoring a prompt beside factoring its
// layers one by one, and coding a block of generated tokens. The layers' keys are the heads of one
// wide layer, which shadowkv_encode factors as a whole: the joint code has to keep as much of them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/bench/kernels/bench_support.h"
#include "tests/kernels/support/shadowkv_joint_problem.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels {
namespace {

constexpr int64_t kLayers = 4;
constexpr int64_t kPromptTokens = 8192;
// With this many generated tokens behind the 32 of the local window the first block is due.
constexpr int64_t kGenerated = 96;
constexpr int32_t kKeyBytes = 2;

ShadowKvShape WideShape() {
  ShadowKvShape shape;
  shape.heads = kLayers * 32;
  shape.config = {.rank = 160,
                  .chunk_tokens = 1,
                  .budget_tokens = 512,
                  .outlier_chunks = 0,
                  .local_chunks = 32,
                  .sink_chunks = 1,
                  .value_bits = 4,
                  .kv_heads = kLayers * 8,
                  .head_dim = 128};
  shape.prompt_tokens = kPromptTokens;
  shape.generated_tokens = kGenerated;
  shape.key_rank = 64;
  return shape;
}

// Energy of bf16 coefficients; rows of a basis are orthonormal, so it is that of the coded keys.
double Energy(const std::byte* coefficients, int64_t tokens, int32_t rank) {
  const auto* values = reinterpret_cast<const uint16_t*>(coefficients);
  double sum = 0.0;
  for (int64_t i = 0; i < tokens * rank; ++i) {
    const double value = BF16ToF32(values[i]);
    sum += value * value;
  }
  return sum;
}

// Made once: the prompt takes seconds to make.
class Group {
 public:
  Group()
      : shape_(WideShape()),
        context_(CpuOps(), 2, shape_),
        wide_(CpuOps(), *context_, shape_),
        joint_(CpuOps(), wide_, kLayers) {
    const ShadowKvPromptLayout& layout = joint_.layout();
    const double want = Energy(wide_.prompt() + wide_.layout().coded_begin,
                               wide_.layout().coded.tokens,
                               shape_.config.rank);
    const double got =
        Energy(joint_.coefficients().data(), layout.coded.tokens, layout.config.rank);
    right = std::fabs(got - want) < 1e-3 * want;
    while (wide_.tokens() < kPromptTokens + kGenerated) {
      wide_.Append(CpuOps(), *context_);
      joint_.Append();
    }
    for (int64_t i = 0; i < kLayers; ++i) {
      sequences_.push_back(joint_.Sequence(i));
    }
    separate_ = {SeparateConfig(layout.config), kPromptTokens};
    section_ = Buffer(separate_.bytes);
    const ShadowKvTailLayout tail(layout, kGenerated);
    right = right && tail.BlockDueAt(sequences_[0].position).has_value();
  }

  ShadowKvEncodeJointParams Encode() {
    layers_ = joint_.Layers();
    return joint_.EncodeParams(layers_, const_cast<std::byte*>(joint_.coefficients().data()));
  }
  ShadowKvAppendJointParams AppendBlock() const { return joint_.AppendParams(sequences_); }
  // One layer for itself, without its values' clusters and selector.
  ShadowKvEncodeParams EncodeAlone(int64_t layer) {
    const ShadowKvEncodeJointParams joint = Encode();
    return {.layout = separate_,
            .pages = joint.pages,
            .page_table = layers_[static_cast<size_t>(layer)].page_table,
            .rope = joint.rope,
            .prompt = section_.data()};
  }
  size_t workspace_bytes(int threads) const {
    const auto bytes = [&](const ShadowKvConfig& config, int64_t layers) {
      return CpuOps().shadowkv_workspace_bytes(threads,
                                               {.config = config,
                                                .heads = shape_.heads / kLayers,
                                                .max_tokens = kPromptTokens + kGenerated,
                                                .layers = layers});
    };
    return std::max(bytes(joint_.layout().config, kLayers), bytes(separate_.config, 1));
  }

  bool right = false;

 private:
  static ShadowKvConfig SeparateConfig(ShadowKvConfig config) {
    config.joint = false;
    return config;
  }

  const ShadowKvShape shape_;
  const ShadowKvContext context_;
  ShadowKvProblem wide_;
  ShadowKvJointProblem joint_;
  std::vector<ShadowKvSequence> sequences_;
  std::vector<ShadowKvJointLayer> layers_;
  ShadowKvPromptLayout separate_{{}, 0};
  Buffer section_;
};

enum class Work : uint8_t { kEncodeJoint, kEncodeAlone, kAppendBlock };

bool Do(Work work, Group& group, const ExecContext& exec) {
  switch (work) {
    case Work::kEncodeJoint:
      return CpuOps().shadowkv_encode_joint(exec, group.Encode()).ok();
    case Work::kEncodeAlone: {
      bool ok = true;
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        ok = ok && CpuOps().shadowkv_encode(exec, group.EncodeAlone(layer)).ok();
      }
      return ok;
    }
    case Work::kAppendBlock:
      return CpuOps().shadowkv_append_joint(exec, group.AppendBlock()).ok();
  }
  return false;
}

void Run(benchmark::State& state, Work work) {
  static Group& group = *new Group;
  if (!group.right) {
    state.SkipWithError("wrong answer");
    return;
  }
  BenchMachine& machine = Machine(state.range(0));
  Buffer workspace(group.workspace_bytes(static_cast<int>(state.range(0))));
  const ExecContext exec = {.pool = machine.context.pool, .workspace = &workspace};
  bool ok = true;
  for (auto _ : state) {
    ok = ok && Do(work, group, exec);
  }
  if (!ok) {
    state.SkipWithError("refused");
    return;
  }
  // Keys of all layers, read once; a factorization also makes their Gram matrices: of the group's
  // columns, or of each layer's.
  const int64_t width = int64_t{kLayers} * 8 * 128;
  const int64_t tokens = work == Work::kAppendBlock ? kShadowKvBlockTokens : kPromptTokens;
  const int64_t gram = work == Work::kEncodeJoint ? width : width / kLayers;
  const double flops = work == Work::kAppendBlock ? 2.0 * static_cast<double>(tokens * width * 160)
                                                  : static_cast<double>(tokens * width * gram);
  Report(state, machine.limits, flops, static_cast<double>(tokens * width * kKeyBytes));
}

void Args(benchmark::internal::Benchmark* bench) {
  bench->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(Run, encode_joint, Work::kEncodeJoint)->Apply(Args);
BENCHMARK_CAPTURE(Run, encode_layers_alone, Work::kEncodeAlone)->Apply(Args);
BENCHMARK_CAPTURE(Run, append_block, Work::kAppendBlock)->Apply(Args);

}  // namespace
}  // namespace baton::kernels

BENCHMARK_MAIN();
