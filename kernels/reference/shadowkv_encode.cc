#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_clusters.h"
#include "kernels/ops/shadowkv_host.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/reference/shadowkv_coding.h"
#include "kernels/reference/shadowkv_factor.h"
#include "kernels/reference/shadowkv_workspace.h"

namespace baton::kernels::reference {
namespace {

// Zeroes what is written here and writes the basis, unless that is joint.
void WriteBasis(const ShadowKvEncodeParams& params, const EncodeScratch& scratch) {
  const bool joint = params.layout.config.joint;
  const size_t begin = joint ? params.layout.cluster_values : 0;
  std::memset(params.prompt + begin, 0, params.layout.bytes - begin);
  if (!joint) {
    const FactorLayer layer = {.page_table = params.page_table,
                               .key_bias = params.key_bias,
                               .basis = params.prompt + params.layout.basis};
    FactorKeys({.config = params.layout.config,
                .pages = params.pages,
                .rope = params.rope,
                .tokens = params.layout.prompt_tokens},
               std::span(&layer, 1),
               scratch.coding,
               scratch.factor);
  }
}

void CodeTokens(const ShadowKvEncodeParams& params, const EncodeScratch& scratch) {
  const ShadowKvPromptLayout& layout = params.layout;
  for (int64_t token = 0; token < layout.coded.tokens; token += kShadowKvBlockTokens) {
    const int64_t count = std::min(kShadowKvBlockTokens, layout.coded.tokens - token);
    LoadPromptTokens(params.pages, params.page_table, token, count, false, scratch.coding.keys);
    LoadPromptTokens(params.pages, params.page_table, token, count, true, scratch.coding.values);
    CodeGroup({.config = layout.config,
               .layout = layout.coded,
               .section = params.prompt + layout.coded_begin,
               .value_section =
                   layout.config.values_apart ? params.values : params.prompt + layout.coded_begin,
               .basis = params.prompt + layout.basis,
               .rope = params.rope,
               .key_bias = params.key_bias,
               .position = token,
               .token = token,
               .tokens = count,
               .keys = scratch.coding.keys,
               .values = scratch.coding.values},
              scratch.coding,
              scratch.chunk_scores);
  }
}

}  // namespace

absl::Status ShadowKvEncode(const ExecContext& context, const ShadowKvEncodeParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  Carver counter(nullptr);
  CarveEncode(params.layout, counter);
  if (absl::Status status = CheckShadowKvWorkspace("shadowkv_encode", context, counter.used());
      !status.ok()) {
    return status;
  }
  Carver carver(context.workspace->data());
  const EncodeScratch scratch = CarveEncode(params.layout, carver);
  WriteBasis(params, scratch);
  CodeTokens(params, scratch);
  for (int32_t head = 0; head < params.layout.config.kv_heads; ++head) {
    WriteShadowKvExact(
        params, head, scratch.chunk_scores + head * params.layout.coded.chunks, scratch.order);
    WriteShadowKvClusters(params, head, scratch.clusters);
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
