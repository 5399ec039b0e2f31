// Upper layers of a SwiftKV model, which are there at once and factored some at a time.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/shadowkv/layer_groups.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/codec/shadowkv/shadowkv_sequence.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/side_queues.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

int32_t ShadowKvCodec::LayersFactored(const ShadowKvMap& map, int64_t tokens) const {
  const int32_t upper = map.layers() - context_.full_layers;
  const kernels::OpTable& ops = *context_.ops;
  if (upper < 2 || ops.shadowkv_factor_layers == nullptr || exec_.side == nullptr) {
    return 1;
  }
  const kernels::ShadowKvConfig& config = map.layout(context_.full_layers).config;
  if (config.joint || config.rank > ops.shadowkv_factored_rank(config.width())) {
    return 1;
  }
  int32_t layers = std::min(kMostFactored, upper);
  while (layers > 1 && LayerWorkspaceBytes(map, context_.full_layers, tokens, layers) >
                           exec_.side->sizes(kernels::SideRank::kFirst).workspace_bytes) {
    --layers;
  }
  return layers;
}

int32_t ShadowKvSequence::FactoredGroupOf(int32_t kv_layer) const {
  const auto found = std::ranges::find_if(factored_groups_, [&](const LayerGroup& layers) {
    return layers.begin <= kv_layer && kv_layer < layers.end;
  });
  return found == factored_groups_.end() ? -1
                                         : static_cast<int32_t>(found - factored_groups_.begin());
}

absl::StatusOr<kernels::ExecContext> ShadowKvSequence::ExecToFactor(int32_t group) {
  return codec_.ExecToEncode({.index = codec_.context().full_layers + group}, workspace_bytes_);
}

kernels::ShadowKvJointLayer ShadowKvSequence::FactoredLayer(const WorkingKv& working,
                                                            int32_t kv_layer) const {
  return {
      .page_table = working.table.data + static_cast<ptrdiff_t>(kv_layer) * working.table.stride,
      .key_bias = codec_.key_bias(kv_layer),
      .prompt = prompt(kv_layer)};
}

absl::Status ShadowKvSequence::FactorLayers(const WorkingKv& working, const LayerGroup& layers) {
  static_assert(ShadowKvCodec::kMostFactored <= kernels::kShadowKvMostFactored);
  kernels::ShadowKvFactorLayersParams params = {.layout = map_.layout(layers.begin),
                                                .pages = working.pages,
                                                .num_layers = layers.end - layers.begin,
                                                .rope = codec_.rope()};
  for (int32_t kv_layer = layers.begin; kv_layer < layers.end; ++kv_layer) {
    params.layers[static_cast<size_t>(kv_layer - layers.begin)] = FactoredLayer(working, kv_layer);
  }
  BATON_ASSIGN_OR_RETURN(const kernels::ExecContext exec,
                         ExecToFactor(FactoredGroupOf(layers.begin)));
  return codec_.context().ops->shadowkv_factor_layers(exec, params);
}

}  // namespace baton::kv
