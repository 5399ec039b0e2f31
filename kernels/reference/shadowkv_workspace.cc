#include "kernels/reference/shadowkv_workspace.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_clusters.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/reference/shadowkv_coding.h"
#include "kernels/reference/shadowkv_factor.h"

namespace baton::kernels::reference {

EncodeScratch CarveEncode(const ShadowKvPromptLayout& layout, Carver& carver) {
  EncodeScratch scratch;
  scratch.coding = CarveCoding(layout.config, carver);
  if (!layout.config.joint) {
    scratch.factor = CarveFactor(layout.config, 1, carver);
  }
  scratch.chunk_scores = carver.Take<float>(layout.config.kv_heads * layout.coded.chunks);
  scratch.order = carver.Take<int32_t>(layout.coded.chunks);
  scratch.clusters = CarveShadowKvClusters(layout.config, carver);
  return scratch;
}

SelectScratch CarveSelect(const ShadowKvConfig& config, int64_t chunks, Carver& carver) {
  SelectScratch scratch;
  scratch.logits = carver.Take<double>(chunks);
  scratch.scores = carver.Take<double>(chunks);
  scratch.order = carver.Take<int32_t>(chunks);
  scratch.taken = carver.Take<bool>(config.value_clusters > 0 ? chunks : 0);
  return scratch;
}

AttendScratch CarveAttend(const ShadowKvConfig& config, int64_t tokens, Carver& carver) {
  AttendScratch scratch;
  scratch.keys = carver.Take<float>(tokens * config.head_dim);
  scratch.values = carver.Take<float>(tokens * config.head_dim);
  scratch.plan = carver.Take<int32_t>(config.budget_chunks());
  scratch.free_slots = carver.Take<int32_t>(config.budget_chunks());
  return scratch;
}

size_t ShadowKvWorkspaceBytes(int, const ShadowKvWorkspaceSizes& sizes) {
  Carver encode(nullptr);
  CarveEncode(ShadowKvPromptLayout(sizes.config, sizes.max_tokens), encode);
  Carver joint(nullptr);
  CarveCoding(sizes.config, joint);
  joint.Take<float>(kShadowKvBlockTokens * sizes.config.rank);
  if (sizes.config.joint) {
    CarveFactor(sizes.config, sizes.layers, joint);
  }
  Carver select(nullptr);
  CarveSelect(sizes.config, sizes.max_tokens / sizes.config.chunk_tokens, select);
  Carver attend(nullptr);
  CarveAttend(sizes.config, 2 * sizes.max_tokens, attend);
  return std::max({encode.used(), joint.used(), select.used(), attend.used()});
}

}  // namespace baton::kernels::reference
