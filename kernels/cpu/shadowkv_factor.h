// The low-rank basis of a prompt's keys, of one layer or of several side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/dominant_subspace.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/shadowkv_coding.h"
#include "kernels/cpu/workspace.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cpu {

// Tokens whose outer products are summed in fp32 before they go into the Gram matrix.
inline constexpr int64_t kGramTileTokens = kDepthBlock;

// What an op does with every token of the prompt shares this: where tokens are and a slice of
// scratch for every thread.
struct PromptTask {
  const IsaKernels& isa;
  const ExecContext& context;
  const ShadowKvConfig& config;
  const DensePages& pages;
  ShadowKvRope rope;
  std::byte* slices = nullptr;
  size_t slice_bytes = 0;

  CodingScratch Coding(int thread) const {
    Carver carver(slices + static_cast<size_t>(thread) * slice_bytes);
    return CarveCoding(config, carver);
  }
};

// Widens one token's keys (or values) of every head, [width].
void LoadPromptToken(
    const PromptTask& task, const int32_t* page_table, int64_t position, bool value, float* out);

// A layer to be factored; `basis`, [rank][width] of the configuration's dtype, is written.
struct FactorLayer {
  const int32_t* page_table = nullptr;
  const float* key_bias = nullptr;
  std::byte* basis = nullptr;
};

struct FactorScratch {
  SubspaceScratch subspace;
  float* panels = nullptr;  // [panels of all columns][kGramTileTokens][panel_columns]
};
FactorScratch CarveFactor(const IsaKernels& isa,
                          const ShadowKvConfig& config,
                          int64_t layers,
                          Carver& carver);

// Finds the config.rank directions of most energy among the un-rotated keys of the first `tokens`
// prompt tokens, the layers side by side, and writes every layer's columns of them; each direction
// has its largest element positive. The same for every number of threads.
void FactorKeys(const PromptTask& task,
                std::span<const FactorLayer> layers,
                int64_t tokens,
                const FactorScratch& scratch);

}  // namespace baton::kernels::cpu
