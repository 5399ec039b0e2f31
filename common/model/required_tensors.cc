#include "common/model/required_tensors.h"

#include <utility>

#include "common/model/tensor_names.h"

namespace baton::model {
namespace {

using checkpoint::ModelConfig;

// Collects tensors of one configuration.
class Collector {
 public:
  explicit Collector(const ModelConfig& config)
      : config_(config),
        hidden_(config.hidden_size),
        query_width_(int64_t{config.num_heads} * config.head_dim),
        kv_width_(int64_t{config.num_kv_heads} * config.head_dim) {}

  void AddVector(std::string name, int64_t size) { tensors_.push_back({std::move(name), {size}}); }
  void AddTable(std::string name, int64_t rows, int64_t columns) {
    tensors_.push_back({std::move(name), {rows, columns}});
  }
  void AddLayer(int32_t layer);
  void AddFanOut();
  std::vector<RequiredTensor> Take() { return std::move(tensors_); }

 private:
  void AddLinear(int32_t layer, const std::string& part, int64_t out, int64_t in, bool bias) {
    const std::string name = LayerTensor(layer, part.c_str());
    AddTable(name + ".weight", out, in);
    if (bias) {
      AddVector(name + ".bias", out);
    }
  }
  void AddHeadNorm(int32_t layer, const char* part) {
    if (config_.qk_norm) {
      AddVector(LayerTensor(layer, part), config_.head_dim);
    }
  }

  const ModelConfig& config_;
  int64_t hidden_;
  int64_t query_width_;
  int64_t kv_width_;
  std::vector<RequiredTensor> tensors_;
};

void Collector::AddLayer(int32_t layer) {
  AddVector(LayerTensor(layer, "input_layernorm.weight"), hidden_);
  AddVector(LayerTensor(layer, "post_attention_layernorm.weight"), hidden_);
  if (layer < config_.num_key_value_layers) {
    AddLinear(layer, "self_attn.q_proj", query_width_, hidden_, config_.qkv_bias);
    AddLinear(layer, "self_attn.k_proj", kv_width_, hidden_, config_.qkv_bias);
    AddLinear(layer, "self_attn.v_proj", kv_width_, hidden_, config_.qkv_bias);
    AddHeadNorm(layer, "self_attn.q_norm.weight");
    AddHeadNorm(layer, "self_attn.k_norm.weight");
  } else {
    AddLinear(layer, "self_attn.q_proj_swiftkv", query_width_, hidden_, config_.qkv_bias);
    AddHeadNorm(layer, "self_attn.q_norm_swiftkv.weight");
  }
  AddLinear(layer, "self_attn.o_proj", hidden_, query_width_, config_.o_bias);
  AddLinear(layer, "mlp.gate_proj", config_.intermediate_size, hidden_, config_.mlp_bias);
  AddLinear(layer, "mlp.up_proj", config_.intermediate_size, hidden_, config_.mlp_bias);
  AddLinear(layer, "mlp.down_proj", hidden_, config_.intermediate_size, config_.mlp_bias);
}

void Collector::AddFanOut() {
  AddVector(kSwiftKvNorm, hidden_);
  for (int32_t leader = config_.num_key_value_layers; leader < config_.num_layers;
       leader += config_.key_value_group_size) {
    AddLinear(leader, "self_attn.k_proj_swiftkv", kv_width_, hidden_, config_.qkv_bias);
    AddLinear(leader, "self_attn.v_proj_swiftkv", kv_width_, hidden_, config_.qkv_bias);
    AddHeadNorm(leader, "self_attn.k_norm_swiftkv.weight");
  }
}

}  // namespace

std::vector<RequiredTensor> RequiredTensors(const ModelConfig& config) {
  Collector collector(config);
  collector.AddTable(kEmbedding, config.vocab_size, config.hidden_size);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    collector.AddLayer(layer);
  }
  if (config.swiftkv()) {
    collector.AddFanOut();
  }
  collector.AddVector(kFinalNorm, config.hidden_size);
  if (!config.tie_word_embeddings) {
    collector.AddTable(kLmHead, config.vocab_size, config.hidden_size);
  }
  return collector.Take();
}

}  // namespace baton::model
