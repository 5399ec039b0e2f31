// Coefficients that several layers share (ShadowKvEncodeJointParams).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_host.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/shadowkv_view.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/reference/shadowkv_coding.h"
#include "kernels/reference/shadowkv_factor.h"

namespace baton::kernels::reference {
namespace {

// Scratch of one group of tokens.
struct JointScratch {
  CodingScratch coding;
  float* sums = nullptr;  // [64, rank]: coefficients over all layers
};

JointScratch CarveJoint(const ShadowKvConfig& config, Carver& carver) {
  JointScratch scratch;
  scratch.coding = CarveCoding(config, carver);
  scratch.sums = carver.Take<float>(kShadowKvBlockTokens * config.rank);
  return scratch;
}

// Adds one layer's part, the keys in scratch.coding.keys, to the sums. `projection` is that of the
// first token.
void AddLayer(const ShadowKvConfig& config,
              KeyProjection projection,
              int64_t tokens,
              const JointScratch& scratch) {
  float* part = scratch.coding.coefficients;
  for (int64_t t = 0; t < tokens; ++t, ++projection.position) {
    ProjectKey(config,
               projection,
               scratch.coding.keys + t * config.width(),
               scratch.coding.factored,
               part);
    for (int64_t j = 0; j < config.rank; ++j) {
      scratch.sums[t * config.rank + j] += part[j];
    }
  }
}

void CodePrompt(const ShadowKvEncodeJointParams& params, const JointScratch& scratch) {
  const ShadowKvConfig& config = params.layout.config;
  const int64_t tokens = params.layout.coded.tokens;
  for (int64_t first = 0; first < tokens; first += kShadowKvBlockTokens) {
    const int64_t count = std::min(kShadowKvBlockTokens, tokens - first);
    std::fill(scratch.sums, scratch.sums + count * config.rank, 0.0f);
    for (int64_t i = 0; i < params.num_layers; ++i) {
      const ShadowKvJointLayer& layer = params.layers[i];
      LoadPromptTokens(params.pages, layer.page_table, first, count, false, scratch.coding.keys);
      AddLayer(config,
               {.basis = layer.prompt + params.layout.basis,
                .rope = params.rope,
                .key_bias = layer.key_bias,
                .position = first},
               count,
               scratch);
    }
    StoreCoefficients(config,
                      {.tokens = tokens, .token = first, .count = count},
                      scratch.sums,
                      params.coefficients);
  }
}

void LoadExactKeys(const ShadowKvSequenceView& view, int64_t first, float* keys) {
  const ShadowKvConfig& config = view.config();
  for (int64_t t = 0; t < kShadowKvBlockTokens; ++t) {
    for (int64_t head = 0; head < config.kv_heads; ++head) {
      for (int64_t i = 0; i < config.head_dim; ++i) {
        *keys++ = LoadElement(view.ExactKey(head, first + t), config.dtype, static_cast<size_t>(i));
      }
    }
  }
}

void CodeBlock(const ShadowKvAppendJointParams& params,
               int64_t block,
               const JointScratch& scratch) {
  const ShadowKvSequence& sequence = params.layers[0];
  const ShadowKvConfig& config = sequence.layout->config;
  const ShadowKvTailLayout tail(*sequence.layout, sequence.max_generated);
  const int64_t first = tail.CodedTokensAt(sequence.position);
  std::fill(scratch.sums, scratch.sums + kShadowKvBlockTokens * config.rank, 0.0f);
  for (int64_t i = 0; i < params.num_layers; ++i) {
    const ShadowKvSequenceView view(params.layers[i]);
    LoadExactKeys(view, first, scratch.coding.keys);
    AddLayer(config,
             {.basis = view.basis(),
              .rope = params.rope,
              .key_bias = params.key_bias == nullptr ? nullptr : params.key_bias[i],
              .position = first},
             kShadowKvBlockTokens,
             scratch);
  }
  StoreCoefficients(config,
                    {.tokens = kShadowKvBlockTokens, .token = 0, .count = kShadowKvBlockTokens},
                    scratch.sums,
                    sequence.joint_tail + tail.joint_block_begin(block));
}

}  // namespace

absl::Status ShadowKvEncodeJoint(const ExecContext& context,
                                 const ShadowKvEncodeJointParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const ShadowKvConfig& config = params.layout.config;
  Carver counter(nullptr);
  CarveJoint(config, counter);
  CarveFactor(config, params.num_layers, counter);
  if (absl::Status status =
          CheckShadowKvWorkspace("shadowkv_encode_joint", context, counter.used());
      !status.ok()) {
    return status;
  }
  Carver carver(context.workspace->data());
  const JointScratch scratch = CarveJoint(config, carver);
  std::vector<FactorLayer> layers;
  for (int64_t i = 0; i < params.num_layers; ++i) {
    const ShadowKvJointLayer& layer = params.layers[i];
    layers.push_back({.page_table = layer.page_table,
                      .key_bias = layer.key_bias,
                      .basis = layer.prompt + params.layout.basis});
  }
  std::memset(
      params.coefficients, 0, ShadowKvCoefficientLayout(config, params.layout.coded.tokens).bytes);
  FactorKeys({.config = config,
              .pages = params.pages,
              .rope = params.rope,
              .tokens = params.layout.prompt_tokens},
             layers,
             scratch.coding,
             CarveFactor(config, params.num_layers, carver));
  CodePrompt(params, scratch);
  return absl::OkStatus();
}

absl::Status ShadowKvAppendJoint(const ExecContext& context,
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
  Carver counter(nullptr);
  CarveJoint(sequence.layout->config, counter);
  if (absl::Status status =
          CheckShadowKvWorkspace("shadowkv_append_joint", context, counter.used());
      !status.ok()) {
    return status;
  }
  Carver carver(context.workspace->data());
  CodeBlock(params, *block, CarveJoint(sequence.layout->config, carver));
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
