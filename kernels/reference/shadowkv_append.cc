#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/shadowkv_clusters.h"
#include "kernels/ops/shadowkv_host.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/shadowkv_view.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/reference/shadowkv_coding.h"

namespace baton::kernels::reference {
namespace {

void WriteToken(const ShadowKvAppendParams& params, const ShadowKvSequence& sequence) {
  const ShadowKvConfig& config = sequence.layout->config;
  const ShadowKvTailLayout tail(*sequence.layout, sequence.max_generated);
  for (int64_t head = 0; head < config.kv_heads; ++head) {
    const int64_t column = head * config.head_dim;
    for (int64_t i = 0; i < config.head_dim; ++i) {
      StoreElement(sequence.tail + tail.exact_key(sequence.position, head),
                   config.dtype,
                   i,
                   Floats(params.k)[sequence.row * params.k_stride + column + i]);
      StoreElement(sequence.tail + tail.exact_value(sequence.position, head),
                   config.dtype,
                   i,
                   Floats(params.v)[sequence.row * params.v_stride + column + i]);
    }
  }
}

// Codes the 64 tokens that this step's token pushed out of the exact ones, if it did.
void CodeDueBlock(const ShadowKvAppendParams& params,
                  const ShadowKvSequence& sequence,
                  const CodingScratch& scratch,
                  const ShadowKvClusterScratch& clusters) {
  const ShadowKvSequenceView view(sequence);
  const ShadowKvConfig& config = view.config();
  const std::optional<int64_t> block = view.tail().BlockDueAt(sequence.position);
  if (!block.has_value()) {
    return;
  }
  const int64_t first = view.tail().CodedTokensAt(sequence.position);
  for (int64_t t = 0; t < kShadowKvBlockTokens; ++t) {
    for (int64_t head = 0; head < config.kv_heads; ++head) {
      for (int64_t i = 0; i < config.head_dim; ++i) {
        const int64_t column = t * config.width() + head * config.head_dim + i;
        const auto element = static_cast<size_t>(i);
        scratch.keys[column] = LoadElement(view.ExactKey(head, first + t), config.dtype, element);
        scratch.values[column] =
            LoadElement(view.ExactValue(head, first + t), config.dtype, element);
      }
    }
  }
  std::byte* section = sequence.tail + view.tail().block_begin(*block);
  CodeGroup({.config = config,
             .layout = view.tail().block,
             .section = section,
             .value_section = config.values_apart
                                  ? sequence.value_tail + view.tail().value_block_begin(*block)
                                  : section,
             .basis = view.basis(),
             .rope = params.rope,
             .key_bias = params.key_bias,
             .position = first,
             .token = 0,
             .tokens = kShadowKvBlockTokens,
             .keys = scratch.keys,
             .values = scratch.values},
            scratch,
            nullptr);
  AssignShadowKvBlock(view, scratch.values, section, clusters);
}

}  // namespace

absl::Status ShadowKvAppend(const ExecContext& context, const ShadowKvAppendParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int64_t s = 0; s < params.num_sequences; ++s) {
    const ShadowKvSequence& sequence = params.sequences[s];
    Carver counter(nullptr);
    CarveCoding(sequence.layout->config, counter);
    CarveShadowKvClusters(sequence.layout->config, counter);
    if (absl::Status status = CheckShadowKvWorkspace("shadowkv_append", context, counter.used());
        !status.ok()) {
      return status;
    }
    Carver carver(context.workspace->data());
    const CodingScratch scratch = CarveCoding(sequence.layout->config, carver);
    WriteToken(params, sequence);
    CodeDueBlock(params, sequence, scratch, CarveShadowKvClusters(sequence.layout->config, carver));
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
