// config.json of a HuggingFace model directory, with every default made explicit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/core/dtype.h"

namespace baton::checkpoint {

enum class Architecture { kLlama, kQwen2, kQwen3, kMistral };

// RoPE scaling "llama3" (swiftkv.md 3.3); factor 1 means none.
struct RopeScaling {
  float factor = 1.0f;
  float low_freq_factor = 1.0f;
  float high_freq_factor = 4.0f;
  int32_t original_max_position_embeddings = 8192;
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  int32_t hidden_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t intermediate_size = 0;
  int32_t vocab_size = 0;
  int32_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-5f;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // Qwen2: hard-wired; Llama: attention_bias
  bool o_bias = false;    // Llama attention_bias
  bool mlp_bias = false;
  bool qk_norm = false;  // Qwen3
  // Window of each layer, 0 = full attention (HF rule: q - window < k <= q); size num_layers.
  std::vector<int32_t> sliding_window;
  kernels::DType dtype = kernels::DType::kBF16;
  int32_t bos_token_id = -1;
  // Stop ids: generation_config.json's eos_token_id, else config.json's.
  std::vector<int32_t> eos_token_ids;

  // What was tolerated while reading and should be shown to the operator, one sentence each.
  std::vector<std::string> warnings;

  // SwiftKV (swiftkv.md 2.1): S full layers, groups of `key_value_group_size` above them.
  // num_key_value_layers == num_layers for a plain model.
  int32_t num_key_value_layers = 0;
  int32_t key_value_group_size = 1;

  bool swiftkv() const { return num_key_value_layers < num_layers; }
  // Layers that store KV: S + G.
  int32_t num_kv_cache_layers() const {
    return num_key_value_layers + (num_layers - num_key_value_layers) / key_value_group_size;
  }
};

// Parses config.json text (both the long-standing and the transformers 5 spellings) and, when not
// empty, generation_config.json text. kInvalidArgument names the field; kUnimplemented names an
// architecture or a rope type that is not supported.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json,
                                             std::string_view generation_config_json);

}  // namespace baton::checkpoint
