#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/shadowkv_coding.h"
#include "kernels/cpu/shadowkv_factor.h"
#include "kernels/cpu/shadowkv_workspace.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_clusters.h"
#include "kernels/ops/shadowkv_host.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

void CodeTokens(const PromptTask& task, const ShadowKvEncodeParams& params, float* chunk_scores) {
  const ShadowKvPromptLayout& layout = params.layout;
  const int64_t width = layout.config.width();
  const int64_t groups = (layout.coded.tokens + kShadowKvBlockTokens - 1) / kShadowKvBlockTokens;
  ParallelFor(task.context, groups, false, [&](int64_t index, int thread) {
    const CodingScratch coding = task.Coding(thread);
    const int64_t first = index * kShadowKvBlockTokens;
    const int64_t count = std::min(kShadowKvBlockTokens, layout.coded.tokens - first);
    for (int64_t t = 0; t < count; ++t) {
      LoadPromptToken(task, params.page_table, first + t, false, coding.keys + t * width);
      LoadPromptToken(task, params.page_table, first + t, true, coding.values + t * width);
    }
    CodeGroup(task.isa,
              {.config = layout.config,
               .layout = layout.coded,
               .section = params.prompt + layout.coded_begin,
               .value_section =
                   layout.config.values_apart ? params.values : params.prompt + layout.coded_begin,
               .basis = params.prompt + layout.basis,
               .rope = params.rope,
               .key_bias = params.key_bias,
               .position = first,
               .token = first,
               .tokens = count},
              coding,
              chunk_scores);
  });
}

// Zeroes what is written here and writes the basis, unless that is joint.
void WriteBasis(const PromptTask& task,
                const ShadowKvEncodeParams& params,
                const FactorScratch& scratch) {
  const size_t begin = params.layout.config.joint ? params.layout.cluster_values : 0;
  std::memset(params.prompt + begin, 0, params.layout.bytes - begin);
  if (!params.layout.config.joint) {
    const FactorLayer layer = {.page_table = params.page_table,
                               .key_bias = params.key_bias,
                               .basis = params.prompt + params.layout.basis};
    FactorKeys(task, std::span(&layer, 1), params.layout.prompt_tokens, scratch);
  }
}

}  // namespace

absl::Status ShadowKvEncode(const IsaKernels& isa,
                            const ExecContext& context,
                            const ShadowKvEncodeParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  Carver shared(nullptr);
  CarveEncode(isa, params.layout, shared);
  Carver coding(nullptr);
  CarveCoding(params.layout.config, coding);
  const size_t needed =
      shared.used() + static_cast<size_t>(context.pool->threads()) * coding.used();
  if (absl::Status status = CheckShadowKvWorkspace("shadowkv_encode", context, needed);
      !status.ok()) {
    return status;
  }
  Carver carver(context.workspace->data());
  const EncodeScratch scratch = CarveEncode(isa, params.layout, carver);
  const PromptTask task = {.isa = isa,
                           .context = context,
                           .config = params.layout.config,
                           .pages = params.pages,
                           .rope = params.rope,
                           .slices = context.workspace->data() + shared.used(),
                           .slice_bytes = coding.used()};
  WriteBasis(task, params, scratch.factor);
  CodeTokens(task, params, scratch.chunk_scores);
  for (int32_t head = 0; head < params.layout.config.kv_heads; ++head) {
    const int64_t first = head * params.layout.coded.chunks;
    WriteShadowKvExact(params, head, scratch.chunk_scores + first, scratch.order + first);
    WriteShadowKvClusters(params, head, scratch.clusters);
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
