#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/shadowkv_coding.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/shadowkv_clusters.h"
#include "kernels/ops/shadowkv_host.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/shadowkv_view.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

void WriteToken(const IsaKernels& isa,
                const ShadowKvAppendParams& params,
                const ShadowKvSequence& sequence) {
  const ShadowKvConfig& config = sequence.layout->config;
  const ShadowKvTailLayout tail(*sequence.layout, sequence.max_generated);
  // The heads of a slot lie side by side.
  StoreVector(isa,
              Floats(params.k) + sequence.row * params.k_stride,
              config.dtype,
              config.width(),
              sequence.tail + tail.exact_key(sequence.position, 0));
  StoreVector(isa,
              Floats(params.v) + sequence.row * params.v_stride,
              config.dtype,
              config.width(),
              sequence.tail + tail.exact_value(sequence.position, 0));
}

std::optional<int64_t> BlockDue(const ShadowKvSequence& sequence) {
  return ShadowKvTailLayout(*sequence.layout, sequence.max_generated).BlockDueAt(sequence.position);
}

// Codes the 64 tokens that this step's token pushed out of the exact ones, as `block` of the tail.
void CodeBlock(const IsaKernels& isa,
               const ShadowKvAppendParams& params,
               const ShadowKvSequence& sequence,
               int64_t block,
               const CodingScratch& scratch,
               const ShadowKvClusterScratch& clusters) {
  const ShadowKvSequenceView view(sequence);
  const ShadowKvConfig& config = view.config();
  const int64_t first = view.tail().CodedTokensAt(sequence.position);
  for (int64_t t = 0; t < kShadowKvBlockTokens; ++t) {
    for (int64_t head = 0; head < config.kv_heads; ++head) {
      const int64_t column = t * config.width() + head * config.head_dim;
      LoadVector(isa,
                 view.ExactKey(head, first + t),
                 config.dtype,
                 config.head_dim,
                 scratch.keys + column);
      LoadVector(isa,
                 view.ExactValue(head, first + t),
                 config.dtype,
                 config.head_dim,
                 scratch.values + column);
    }
  }
  std::byte* section = sequence.tail + view.tail().block_begin(block);
  CodeGroup(isa,
            {.config = config,
             .layout = view.tail().block,
             .section = section,
             .value_section = config.values_apart
                                  ? sequence.value_tail + view.tail().value_block_begin(block)
                                  : section,
             .basis = view.basis(),
             .rope = params.rope,
             .key_bias = params.key_bias,
             .position = first,
             .token = 0,
             .tokens = kShadowKvBlockTokens},
            scratch,
            nullptr);
  AssignShadowKvBlock(view, scratch.values, section, clusters);
}

}  // namespace

absl::Status ShadowKvAppend(const IsaKernels& isa,
                            const ExecContext& context,
                            const ShadowKvAppendParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  size_t slice_bytes = 0;
  int64_t due = 0;
  for (int64_t s = 0; s < params.num_sequences; ++s) {
    Carver counter(nullptr);
    CarveCoding(params.sequences[s].layout->config, counter);
    CarveShadowKvClusters(params.sequences[s].layout->config, counter);
    slice_bytes = std::max(slice_bytes, counter.used());
    due += BlockDue(params.sequences[s]).has_value() ? 1 : 0;
  }
  const size_t needed = static_cast<size_t>(context.pool->threads()) * slice_bytes;
  if (absl::Status status = CheckShadowKvWorkspace("shadowkv_append", context, needed);
      !status.ok()) {
    return status;
  }
  ParallelFor(context, params.num_sequences, due < 2, [&](int64_t s, int thread) {
    const ShadowKvSequence& sequence = params.sequences[s];
    WriteToken(isa, params, sequence);
    if (const auto block = BlockDue(sequence); block.has_value()) {
      Carver carver(context.workspace->data() + static_cast<size_t>(thread) * slice_bytes);
      const CodingScratch coding = CarveCoding(sequence.layout->config, carver);
      CodeBlock(isa,
                params,
                sequence,
                *block,
                coding,
                CarveShadowKvClusters(sequence.layout->config, carver));
    }
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
