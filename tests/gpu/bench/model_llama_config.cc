#include "tests/gpu/bench/model_llama_config.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/checkpoint/model_config.h"

namespace baton::model {
namespace {

// Without the closing brace.
constexpr const char* kPublished = R"({
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_act": "silu",
  "hidden_size": 4096,
  "intermediate_size": 14336,
  "max_position_embeddings": 131072,
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3"
  },
  "rope_theta": 500000.0,
  "tie_word_embeddings": false,
  "torch_dtype": "bfloat16",
  "vocab_size": 128256)";

}  // namespace

absl::StatusOr<checkpoint::ModelConfig> LlamaConfig(int32_t full_layers) {
  return checkpoint::ParseModelConfig(absl::StrCat(kPublished,
                                                   ", \"num_key_value_layers\": ",
                                                   full_layers,
                                                   ", \"key_value_group_size\": 1}"),
                                      "");
}

}  // namespace baton::model
