// Coefficients that several layers share (ShadowKvEncodeJointParams).
#include "kernels/cpu/shadowkv_joint.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/shadowkv_coding.h"
#include "kernels/cpu/shadowkv_factor.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_host.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/shadowkv_view.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

// Adds one layer's part of the group's coefficients to the sums.
void AddLayer(const IsaKernels& isa,
              const ShadowKvConfig& config,
              const KeyProjection& projection,
              const JointCodingScratch& scratch) {
  const int64_t count = projection.tokens * config.rank;
  float* part = scratch.coding.coefficients;
  ProjectKeys(isa, config, projection, scratch.coding, part);
  std::transform(scratch.sums, scratch.sums + count, part, scratch.sums, [](float a, float b) {
    return a + b;
  });
}

JointCodingScratch ThreadScratch(const PromptTask& task, int thread) {
  Carver carver(task.slices + static_cast<size_t>(thread) * task.slice_bytes);
  return CarveJointCoding(task.config, carver);
}

void CodePrompt(const PromptTask& task, const ShadowKvEncodeJointParams& params) {
  const ShadowKvConfig& config = task.config;
  const int64_t tokens = params.layout.coded.tokens;
  const int64_t groups = (tokens + kShadowKvBlockTokens - 1) / kShadowKvBlockTokens;
  ParallelFor(task.context, groups, false, [&](int64_t index, int thread) {
    const JointCodingScratch scratch = ThreadScratch(task, thread);
    const int64_t first = index * kShadowKvBlockTokens;
    const int64_t count = std::min(kShadowKvBlockTokens, tokens - first);
    std::fill(scratch.sums, scratch.sums + count * config.rank, 0.0f);
    for (int64_t i = 0; i < params.num_layers; ++i) {
      const ShadowKvJointLayer& layer = params.layers[i];
      for (int64_t t = 0; t < count; ++t) {
        LoadPromptToken(
            task, layer.page_table, first + t, false, scratch.coding.keys + t * config.width());
      }
      AddLayer(task.isa,
               config,
               {.basis = layer.prompt + params.layout.basis,
                .rope = params.rope,
                .key_bias = layer.key_bias,
                .position = first,
                .tokens = count},
               scratch);
    }
    StoreCoefficients(task.isa,
                      config,
                      {.tokens = tokens, .token = first, .count = count},
                      scratch.sums,
                      params.coefficients);
  });
}

// Widens the exact keys of the 64 tokens from `first` on.
void LoadExactKeys(const IsaKernels& isa,
                   const ShadowKvSequenceView& view,
                   int64_t first,
                   float* keys) {
  const ShadowKvConfig& config = view.config();
  for (int64_t t = 0; t < kShadowKvBlockTokens; ++t) {
    for (int64_t head = 0; head < config.kv_heads; ++head) {
      LoadVector(isa,
                 view.ExactKey(head, first + t),
                 config.dtype,
                 config.head_dim,
                 keys + t * config.width() + head * config.head_dim);
    }
  }
}

void CodeBlock(const IsaKernels& isa,
               const ShadowKvAppendJointParams& params,
               int64_t block,
               const JointCodingScratch& scratch) {
  const ShadowKvSequence& sequence = params.layers[0];
  const ShadowKvConfig& config = sequence.layout->config;
  const ShadowKvTailLayout tail(*sequence.layout, sequence.max_generated);
  const int64_t first = tail.CodedTokensAt(sequence.position);
  std::fill(scratch.sums, scratch.sums + kShadowKvBlockTokens * config.rank, 0.0f);
  for (int64_t i = 0; i < params.num_layers; ++i) {
    const ShadowKvSequenceView view(params.layers[i]);
    LoadExactKeys(isa, view, first, scratch.coding.keys);
    AddLayer(isa,
             config,
             {.basis = view.basis(),
              .rope = params.rope,
              .key_bias = params.key_bias == nullptr ? nullptr : params.key_bias[i],
              .position = first,
              .tokens = kShadowKvBlockTokens},
             scratch);
  }
  StoreCoefficients(isa,
                    config,
                    {.tokens = kShadowKvBlockTokens, .token = 0, .count = kShadowKvBlockTokens},
                    scratch.sums,
                    sequence.joint_tail + tail.joint_block_begin(block));
}

}  // namespace

JointCodingScratch CarveJointCoding(const ShadowKvConfig& config, Carver& carver) {
  JointCodingScratch scratch;
  scratch.coding = CarveCoding(config, carver);
  scratch.sums = carver.Take<float>(kShadowKvBlockTokens * config.rank);
  return scratch;
}

absl::Status ShadowKvEncodeJoint(const IsaKernels& isa,
                                 const ExecContext& context,
                                 const ShadowKvEncodeJointParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const ShadowKvConfig& config = params.layout.config;
  Carver shared(nullptr);
  CarveFactor(isa, config, params.num_layers, shared);
  Carver slice(nullptr);
  CarveJointCoding(config, slice);
  const size_t needed = shared.used() + static_cast<size_t>(context.pool->threads()) * slice.used();
  if (absl::Status status = CheckShadowKvWorkspace("shadowkv_encode_joint", context, needed);
      !status.ok()) {
    return status;
  }
  Carver carver(context.workspace->data());
  const FactorScratch factor = CarveFactor(isa, config, params.num_layers, carver);
  const PromptTask task = {.isa = isa,
                           .context = context,
                           .config = config,
                           .pages = params.pages,
                           .rope = params.rope,
                           .slices = context.workspace->data() + shared.used(),
                           .slice_bytes = slice.used()};
  std::vector<FactorLayer> layers;
  for (int64_t i = 0; i < params.num_layers; ++i) {
    const ShadowKvJointLayer& layer = params.layers[i];
    layers.push_back({.page_table = layer.page_table,
                      .key_bias = layer.key_bias,
                      .basis = layer.prompt + params.layout.basis});
  }
  std::memset(
      params.coefficients, 0, ShadowKvCoefficientLayout(config, params.layout.coded.tokens).bytes);
  FactorKeys(task, layers, params.layout.prompt_tokens, factor);
  CodePrompt(task, params);
  return absl::OkStatus();
}

absl::Status ShadowKvAppendJoint(const IsaKernels& isa,
                                 const ExecContext& context,
                                 const ShadowKvAppendJointParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const ShadowKvSequence& sequence = params.layers[0];
  const ShadowKvTailLayout tail(*sequence.layout, sequence.max_generated);
  const std::optional<int64_t> block = tail.BlockDueAt(sequence.position);
  if (!block.has_value()) {
    return absl::OkStatus();
  }
  Carver slice(nullptr);
  CarveJointCoding(sequence.layout->config, slice);
  if (absl::Status status = CheckShadowKvWorkspace("shadowkv_append_joint", context, slice.used());
      !status.ok()) {
    return status;
  }
  Carver carver(context.workspace->data());
  CodeBlock(isa, params, *block, CarveJointCoding(sequence.layout->config, carver));
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
