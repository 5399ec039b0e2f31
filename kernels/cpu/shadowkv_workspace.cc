#include "kernels/cpu/shadowkv_workspace.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/shadowkv_coding.h"
#include "kernels/cpu/shadowkv_factor.h"
#include "kernels/cpu/shadowkv_joint.h"
#include "kernels/cpu/workspace.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_clusters.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cpu {
namespace {

int64_t PaddedColumns(const IsaKernels& isa, int64_t columns) {
  return (columns + isa.panel_columns - 1) / isa.panel_columns * isa.panel_columns;
}

}  // namespace

EncodeScratch CarveEncode(const IsaKernels& isa,
                          const ShadowKvPromptLayout& layout,
                          Carver& carver) {
  const ShadowKvConfig& config = layout.config;
  EncodeScratch scratch;
  if (!config.joint) {
    scratch.factor = CarveFactor(isa, config, 1, carver);
  }
  scratch.chunk_scores = carver.Take<float>(config.kv_heads * layout.coded.chunks);
  scratch.order = carver.Take<int32_t>(config.kv_heads * layout.coded.chunks);
  scratch.clusters = CarveShadowKvClusters(config, carver);
  return scratch;
}

SelectScratch CarveSelect(const ShadowKvConfig& config,
                          int64_t group,
                          int64_t chunks,
                          Carver& carver) {
  SelectScratch scratch;
  scratch.magnitudes = carver.Take<float>(group * config.head_dim);
  scratch.logits = carver.Take<float>(group * chunks);
  scratch.scores = carver.Take<float>(chunks);
  scratch.order = carver.Take<int32_t>(chunks);
  scratch.codes = carver.Take<float>(kShadowKvBlockTokens * config.head_dim);
  scratch.dots = carver.Take<float>(group * kShadowKvBlockTokens);
  scratch.tokens =
      carver.Take<float>(config.value_clusters > 0 ? group * chunks * config.chunk_tokens : 0);
  scratch.sums = carver.Take<float>(config.value_clusters);
  return scratch;
}

AttendScratch CarveAttend(const IsaKernels& isa, const ShadowKvConfig& config, Carver& carver) {
  const int64_t dim = config.head_dim;
  const int64_t chunks = config.budget_chunks();
  const auto slot_bytes =
      chunks * config.chunk_tokens * static_cast<int64_t>(config.vector_bytes());
  AttendScratch scratch;
  scratch.attention = CarveAttention(
      isa, dim, carver.Take<std::byte>(static_cast<int64_t>(AttentionScratchBytes(isa, dim))));
  scratch.basis = carver.Take<float>(PaddedColumns(isa, dim) * config.rank);
  scratch.coefficients = carver.Take<float>(kShadowKvBlockTokens * config.rank);
  scratch.scales = carver.Take<float>(config.rank);
  scratch.keys = carver.Take<float>(kShadowKvBlockTokens * dim);
  scratch.value = carver.Take<float>(dim);
  scratch.cluster = carver.Take<float>(config.value_clusters > 0 ? dim : 0);
  scratch.plan = carver.Take<int32_t>(chunks);
  scratch.free_slots = carver.Take<int32_t>(chunks);
  scratch.slot_keys = carver.Take<std::byte>(slot_bytes);
  scratch.slot_values = carver.Take<std::byte>(config.quantized_values() ? slot_bytes : 0);
  return scratch;
}

size_t ShadowKvWorkspaceBytes(const IsaKernels& isa,
                              int threads,
                              const ShadowKvWorkspaceSizes& sizes) {
  const ShadowKvConfig& config = sizes.config;
  Carver encode(nullptr);
  CarveEncode(isa, ShadowKvPromptLayout(config, sizes.max_tokens), encode);
  Carver joint(nullptr);
  if (config.joint) {
    CarveFactor(isa, config, sizes.layers, joint);
  }
  Carver coding(nullptr);
  CarveCoding(config, coding);
  CarveShadowKvClusters(config, coding);
  Carver coding_jointly(nullptr);
  CarveJointCoding(config, coding_jointly);
  Carver select(nullptr);
  CarveSelect(config,
              sizes.heads / std::max(config.kv_heads, 1),
              sizes.max_tokens / config.chunk_tokens,
              select);
  Carver attend(nullptr);
  CarveAttend(isa, config, attend);
  const auto count = static_cast<size_t>(std::max(threads, 1));
  return std::max({encode.used() + count * coding.used(),
                   joint.used() + count * coding_jointly.used(),
                   count * select.used(),
                   count * attend.used()});
}

}  // namespace baton::kernels::cpu
