// Upper layers of a SwiftKV model, which are there at once and factored some at a time.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/block_cache.h"
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

// Behind the lower layers in turn, and the first groups, which are sent first, where the device
// puts them first.
absl::StatusOr<kernels::ExecContext> ShadowKvSequence::ExecToFactor(int32_t group) {
  constexpr int32_t kTurn = kernels::SideQueues::kTurn;
  const int32_t first = (codec_.context().full_layers + kTurn - 1) / kTurn * kTurn;
  return codec_.ExecToEncode({.index = first + group}, workspace_bytes_);
}

double* ShadowKvSequence::gram(int32_t kv_layer) const {
  if (grams_.empty()) {
    return nullptr;
  }
  const CodecContext& context = codec_.context();
  return grams_.as<double>() +
         (kv_layer - context.full_layers) *
             context.ops->shadowkv_gram_numbers(map_.layout(kv_layer).config.width());
}

kernels::ShadowKvJointLayer ShadowKvSequence::FactoredLayer(const WorkingKv& working,
                                                            int32_t kv_layer) const {
  return {
      .page_table = working.table.data + static_cast<ptrdiff_t>(kv_layer) * working.table.stride,
      .key_bias = codec_.key_bias(kv_layer),
      .prompt = prompt(kv_layer),
      .gram = gram(kv_layer)};
}

ShadowKvSequence::FactoredLayers ShadowKvSequence::LayersOf(const WorkingKv& working,
                                                            const LayerGroup& group) const {
  static_assert(ShadowKvCodec::kMostFactored <= kernels::kShadowKvMostFactored);
  FactoredLayers layers = {};
  for (int32_t kv_layer = group.begin; kv_layer < group.end; ++kv_layer) {
    layers[static_cast<size_t>(kv_layer - group.begin)] = FactoredLayer(working, kv_layer);
  }
  return layers;
}

// Without memory for sums all tokens are added up once the prompt is whole.
absl::Status ShadowKvSequence::TokensWritten(const WorkingKv& working, int64_t tokens) {
  if (factored_groups_.empty() || tokens <= gram_tokens_) {
    return absl::OkStatus();
  }
  if (grams_.empty()) {
    const CodecContext& context = codec_.context();
    const int64_t columns = map_.layout(context.full_layers).config.width();
    const int64_t numbers =
        (map_.layers() - context.full_layers) * context.ops->shadowkv_gram_numbers(columns);
    absl::StatusOr<BlockCache::Block> grams =
        codec_.blocks().Take(static_cast<size_t>(numbers) * sizeof(double));
    if (!grams.ok()) {
      return absl::OkStatus();
    }
    grams_ = *std::move(grams);
  }
  for (size_t group = 0; group < factored_groups_.size(); ++group) {
    BATON_RETURN_IF_ERROR(AddGrams(working, static_cast<int32_t>(group), tokens));
  }
  gram_tokens_ = tokens;
  return absl::OkStatus();
}

absl::Status ShadowKvSequence::AddGrams(const WorkingKv& working, int32_t group, int64_t tokens) {
  const LayerGroup& layers = factored_groups_[static_cast<size_t>(group)];
  BATON_ASSIGN_OR_RETURN(const kernels::ExecContext exec, ExecToFactor(group));
  return codec_.context().ops->shadowkv_add_grams(exec,
                                                  {.config = map_.layout(layers.begin).config,
                                                   .pages = working.pages,
                                                   .layers = LayersOf(working, layers),
                                                   .num_layers = layers.end - layers.begin,
                                                   .token_begin = gram_tokens_,
                                                   .token_end = tokens,
                                                   .rope = codec_.rope()});
}

absl::Status ShadowKvSequence::FactorLayers(const WorkingKv& working, int32_t group) {
  const LayerGroup& layers = factored_groups_[static_cast<size_t>(group)];
  BATON_ASSIGN_OR_RETURN(const kernels::ExecContext exec, ExecToFactor(group));
  return codec_.context().ops->shadowkv_factor_layers(exec,
                                                      {.layout = map_.layout(layers.begin),
                                                       .pages = working.pages,
                                                       .layers = LayersOf(working, layers),
                                                       .num_layers = layers.end - layers.begin,
                                                       .gram_tokens = gram_tokens_,
                                                       .rope = codec_.rope()});
}

}  // namespace baton::kv
