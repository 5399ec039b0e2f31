#include "common/model/load_weights.h"

#include <array>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/checkpoint/model_config.h"
#include "common/model/rope.h"
#include "common/model/tensor_names.h"
#include "common/model/weight_loader.h"
#include "common/model/weights.h"
#include "kernels/core/dtype.h"
#include "kernels/core/memory.h"

namespace baton::model {
namespace {

using checkpoint::ModelConfig;

int64_t QueryWidth(const ModelConfig& config) {
  return int64_t{config.num_heads} * config.head_dim;
}

int64_t KvWidth(const ModelConfig& config) {
  return int64_t{config.num_kv_heads} * config.head_dim;
}

absl::Status LoadAttention(const ModelConfig& config,
                           const WeightLoader& loader,
                           int32_t layer,
                           LayerWeights& weights) {
  const bool full = layer < config.num_key_value_layers;
  std::vector<LinearPart> parts;
  if (full) {
    parts = {{LayerTensor(layer, "self_attn.q_proj"), QueryWidth(config)},
             {LayerTensor(layer, "self_attn.k_proj"), KvWidth(config)},
             {LayerTensor(layer, "self_attn.v_proj"), KvWidth(config)}};
  } else {
    parts = {{LayerTensor(layer, "self_attn.q_proj_swiftkv"), QueryWidth(config)}};
  }
  BATON_ASSIGN_OR_RETURN(weights.projection,
                         loader.Stacked(parts, config.hidden_size, config.qkv_bias));
  const std::array<LinearPart, 1> output = {
      {{LayerTensor(layer, "self_attn.o_proj"), config.hidden_size}}};
  BATON_ASSIGN_OR_RETURN(weights.output, loader.Stacked(output, QueryWidth(config), config.o_bias));
  if (config.qk_norm) {
    const char* q_norm = full ? "self_attn.q_norm.weight" : "self_attn.q_norm_swiftkv.weight";
    BATON_ASSIGN_OR_RETURN(weights.q_norm,
                           loader.Vector(LayerTensor(layer, q_norm), config.head_dim));
    if (full) {
      BATON_ASSIGN_OR_RETURN(
          weights.k_norm,
          loader.Vector(LayerTensor(layer, "self_attn.k_norm.weight"), config.head_dim));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerWeights> LoadLayer(const ModelConfig& config,
                                       const WeightLoader& loader,
                                       int32_t layer) {
  LayerWeights weights;
  BATON_ASSIGN_OR_RETURN(
      weights.input_norm,
      loader.Vector(LayerTensor(layer, "input_layernorm.weight"), config.hidden_size));
  BATON_ASSIGN_OR_RETURN(
      weights.post_attention_norm,
      loader.Vector(LayerTensor(layer, "post_attention_layernorm.weight"), config.hidden_size));
  BATON_RETURN_IF_ERROR(LoadAttention(config, loader, layer, weights));
  const std::array<LinearPart, 2> gate_up = {
      {{LayerTensor(layer, "mlp.gate_proj"), config.intermediate_size},
       {LayerTensor(layer, "mlp.up_proj"), config.intermediate_size}}};
  BATON_ASSIGN_OR_RETURN(weights.gate_up,
                         loader.Stacked(gate_up, config.hidden_size, config.mlp_bias));
  const std::array<LinearPart, 1> down = {
      {{LayerTensor(layer, "mlp.down_proj"), config.hidden_size}}};
  BATON_ASSIGN_OR_RETURN(weights.down,
                         loader.Stacked(down, config.intermediate_size, config.mlp_bias));
  return weights;
}

absl::StatusOr<FanOutWeights> LoadFanOut(const ModelConfig& config, const WeightLoader& loader) {
  FanOutWeights weights;
  BATON_ASSIGN_OR_RETURN(weights.norm, loader.Vector(kSwiftKvNorm, config.hidden_size));
  std::vector<LinearPart> parts;
  for (const char* projection : {"self_attn.k_proj_swiftkv", "self_attn.v_proj_swiftkv"}) {
    for (int32_t leader = config.num_key_value_layers; leader < config.num_layers;
         leader += config.key_value_group_size) {
      parts.push_back({LayerTensor(leader, projection), KvWidth(config)});
    }
  }
  BATON_ASSIGN_OR_RETURN(weights.kv, loader.Stacked(parts, config.hidden_size, config.qkv_bias));
  for (int32_t leader = config.num_key_value_layers; config.qk_norm && leader < config.num_layers;
       leader += config.key_value_group_size) {
    BATON_ASSIGN_OR_RETURN(
        kernels::Memory norm,
        loader.Vector(LayerTensor(leader, "self_attn.k_norm_swiftkv.weight"), config.head_dim));
    weights.k_norms.push_back(std::move(norm));
  }
  return weights;
}

}  // namespace

absl::StatusOr<ModelWeights> LoadWeights(const ModelConfig& config,
                                         const WeightLoader& loader,
                                         kernels::DType dtype) {
  ModelWeights weights;
  weights.embedding_dtype = dtype;
  BATON_ASSIGN_OR_RETURN(weights.inverse_frequencies,
                         loader.Constants(RopeInverseFrequencies(config)));
  BATON_ASSIGN_OR_RETURN(weights.embedding,
                         loader.Table(kEmbedding, config.vocab_size, config.hidden_size));
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    BATON_ASSIGN_OR_RETURN(LayerWeights layer_weights, LoadLayer(config, loader, layer));
    weights.layers.push_back(std::move(layer_weights));
  }
  if (config.swiftkv()) {
    BATON_ASSIGN_OR_RETURN(weights.fan_out, LoadFanOut(config, loader));
  }
  BATON_ASSIGN_OR_RETURN(weights.final_norm, loader.Vector(kFinalNorm, config.hidden_size));
  if (config.tie_word_embeddings) {
    BATON_ASSIGN_OR_RETURN(weights.lm_head,
                           loader.Packed(weights.embedding, config.vocab_size, config.hidden_size));
  } else {
    BATON_ASSIGN_OR_RETURN(const kernels::Memory head,
                           loader.Table(kLmHead, config.vocab_size, config.hidden_size));
    BATON_ASSIGN_OR_RETURN(weights.lm_head,
                           loader.Packed(head, config.vocab_size, config.hidden_size));
  }
  return weights;
}

}  // namespace baton::model
