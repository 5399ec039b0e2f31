#include "common/checkpoint/model_config.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace baton::checkpoint {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json LlamaConfig() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 128},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"intermediate_size", 256},
          {"vocab_size", 320},
          {"max_position_embeddings", 4096},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"torch_dtype", "bfloat16"},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

json WithFamily(json config, const std::string& prefix, const std::string& type) {
  config["architectures"] = {prefix + "ForCausalLM"};
  config["model_type"] = type;
  return config;
}

ModelConfig Parse(const json& config, const std::string& generation = "") {
  absl::StatusOr<ModelConfig> parsed = ParseModelConfig(config.dump(), generation);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : ModelConfig();
}

absl::Status ParseError(const json& config) { return ParseModelConfig(config.dump(), "").status(); }

TEST(ModelConfigTest, ReadsShapesOfLlama) {
  const ModelConfig config = Parse(LlamaConfig());
  EXPECT_EQ(config.architecture, Architecture::kLlama);
  EXPECT_EQ(config.hidden_size, 128);
  EXPECT_EQ(config.num_layers, 4);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.vocab_size, 320);
  EXPECT_EQ(config.dtype, kernels::DType::kBF16);
  EXPECT_FLOAT_EQ(config.rms_norm_eps, 1e-5f);
  EXPECT_EQ(config.rope_theta, 500000.0);
  EXPECT_EQ(config.rope_scaling.factor, 1.0f);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.mlp_bias || config.qk_norm);
  EXPECT_FALSE(config.swiftkv());
  EXPECT_EQ(config.num_kv_cache_layers(), 4);
  EXPECT_THAT(config.sliding_window, ElementsAre(0, 0, 0, 0));
}

TEST(ModelConfigTest, HeadDimMayBeMissingNullOrUnrelatedToHidden) {
  json config = LlamaConfig();
  config["head_dim"] = nullptr;
  EXPECT_EQ(Parse(config).head_dim, 32);
  config["head_dim"] = 64;
  EXPECT_EQ(Parse(config).head_dim, 64);
  config = WithFamily(LlamaConfig(), "Qwen3", "qwen3");
  EXPECT_EQ(Parse(config).head_dim, 128) << "the default of Qwen3's configuration class";
  config["head_dim"] = nullptr;
  EXPECT_EQ(Parse(config).head_dim, 32);
}

TEST(ModelConfigTest, Llama3ScalingInBothSpellings) {
  json scaling = {{"factor", 8.0},
                  {"low_freq_factor", 1.0},
                  {"high_freq_factor", 4.0},
                  {"original_max_position_embeddings", 256}};
  json old_style = LlamaConfig();
  old_style["rope_scaling"] = scaling;
  old_style["rope_scaling"]["rope_type"] = "llama3";
  json older_key = LlamaConfig();
  older_key["rope_scaling"] = scaling;
  older_key["rope_scaling"]["type"] = "llama3";
  json new_style = LlamaConfig();
  new_style.erase("rope_theta");
  new_style.erase("torch_dtype");
  new_style["dtype"] = "float16";
  new_style["rope_parameters"] = scaling;
  new_style["rope_parameters"]["rope_type"] = "llama3";
  new_style["rope_parameters"]["rope_theta"] = 500000.0;
  for (const json& config : {old_style, older_key, new_style}) {
    const ModelConfig parsed = Parse(config);
    EXPECT_EQ(parsed.rope_theta, 500000.0);
    EXPECT_EQ(parsed.rope_scaling.factor, 8.0f);
    EXPECT_EQ(parsed.rope_scaling.low_freq_factor, 1.0f);
    EXPECT_EQ(parsed.rope_scaling.high_freq_factor, 4.0f);
    EXPECT_EQ(parsed.rope_scaling.original_max_position_embeddings, 256);
  }
  EXPECT_EQ(Parse(new_style).dtype, kernels::DType::kF16);
}

TEST(ModelConfigTest, UnknownRopeTypeIsNamed) {
  json config = LlamaConfig();
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const absl::Status status = ParseError(config);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("yarn"));
}

TEST(ModelConfigTest, BiasesAndNormsFollowTheFamily) {
  json qwen2 = WithFamily(LlamaConfig(), "Qwen2", "qwen2");
  qwen2["attention_bias"] = false;
  EXPECT_TRUE(Parse(qwen2).qkv_bias);
  EXPECT_FALSE(Parse(qwen2).o_bias);
  const ModelConfig qwen3 = Parse(WithFamily(LlamaConfig(), "Qwen3", "qwen3"));
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
  json llama = LlamaConfig();
  llama["attention_bias"] = true;
  llama["mlp_bias"] = true;
  EXPECT_TRUE(Parse(llama).qkv_bias && Parse(llama).o_bias && Parse(llama).mlp_bias);
}

TEST(ModelConfigTest, SlidingWindowRules) {
  json mistral = WithFamily(LlamaConfig(), "Mistral", "mistral");
  mistral["sliding_window"] = 64;
  EXPECT_THAT(Parse(mistral).sliding_window, ElementsAre(64, 64, 64, 64));
  mistral["sliding_window"] = nullptr;
  EXPECT_THAT(Parse(mistral).sliding_window, ElementsAre(0, 0, 0, 0));
  json qwen = WithFamily(LlamaConfig(), "Qwen2", "qwen2");
  qwen["sliding_window"] = 64;
  qwen["max_window_layers"] = 1;
  EXPECT_THAT(Parse(qwen).sliding_window, ElementsAre(0, 0, 0, 0));
  qwen["use_sliding_window"] = true;
  EXPECT_THAT(Parse(qwen).sliding_window, ElementsAre(0, 64, 64, 64));
  qwen["layer_types"] = {
      "sliding_attention", "full_attention", "full_attention", "sliding_attention"};
  EXPECT_THAT(Parse(qwen).sliding_window, ElementsAre(64, 0, 0, 64));
  json llama = LlamaConfig();
  llama["sliding_window"] = 64;
  EXPECT_THAT(Parse(llama).sliding_window, ElementsAre(0, 0, 0, 0));
}

TEST(ModelConfigTest, SwiftKvIsDecidedByTheLayerCountAlone) {
  json config = LlamaConfig();
  config["architectures"] = {"LlamaSwiftKVForCausalLM"};
  config["model_type"] = "llama_swiftkv";
  EXPECT_FALSE(Parse(config).swiftkv());
  config["num_key_value_layers"] = 2;
  for (const bool flag : {true, false}) {
    config["swiftkv"] = flag;
    EXPECT_TRUE(Parse(config).swiftkv());
    EXPECT_EQ(Parse(config).num_kv_cache_layers(), 4);
  }
  config["key_value_group_size"] = 2;
  EXPECT_EQ(Parse(config).num_kv_cache_layers(), 3);
  config["num_key_value_layers"] = 4;
  EXPECT_FALSE(Parse(config).swiftkv());
  EXPECT_EQ(Parse(config).num_kv_cache_layers(), 4);
}

TEST(ModelConfigTest, GroupSizeMustDivideTheUpperLayers) {
  json config = LlamaConfig();
  config["num_key_value_layers"] = 1;
  config["key_value_group_size"] = 2;
  EXPECT_THAT(std::string(ParseError(config).message()), HasSubstr("key_value_group_size"));
}

TEST(ModelConfigTest, StopIdsOfGenerationConfigWin) {
  EXPECT_THAT(Parse(LlamaConfig()).eos_token_ids, ElementsAre(2));
  EXPECT_THAT(Parse(LlamaConfig(), R"({"eos_token_id": 7})").eos_token_ids, ElementsAre(7));
  EXPECT_THAT(Parse(LlamaConfig(), R"({"eos_token_id": [7, 8]})").eos_token_ids, ElementsAre(7, 8));
  EXPECT_THAT(Parse(LlamaConfig(), "{}").eos_token_ids, ElementsAre(2));
}

TEST(ModelConfigTest, BrokenGenerationConfigIsAWarning) {
  for (const char* text : {R"({"eos_token_id": 7,})", "[]", R"({"eos_token_id": "x"})"}) {
    const ModelConfig config = Parse(LlamaConfig(), text);
    EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
    EXPECT_EQ(config.warnings.size(), 1u) << text;
  }
}

TEST(ModelConfigTest, UnknownArchitectureIsNamed) {
  for (const auto& [prefix, type] :
       std::vector<std::pair<std::string, std::string>>{{"Gemma2", "gemma2"}, {"Llama", "phi3"}}) {
    const absl::Status status = ParseError(WithFamily(LlamaConfig(), prefix, type));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr(type == "phi3" ? "phi3" : "Gemma2"));
  }
  EXPECT_EQ(ParseError(WithFamily(LlamaConfig(), "Llama", "qwen2")).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ModelConfigTest, QuantizedWeightsAreRefused) {
  json config = LlamaConfig();
  config["quantization_config"] = {{"quant_method", "fp8"}};
  EXPECT_THAT(std::string(ParseError(config).message()), HasSubstr("quantization_config"));
}

struct BadField {
  const char* name;
  json value;
};

class ModelConfigFieldTest : public testing::TestWithParam<BadField> {};

TEST_P(ModelConfigFieldTest, BadValueIsNamed) {
  json config = LlamaConfig();
  config[GetParam().name] = GetParam().value;
  const absl::Status status = ParseError(config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().name));
}

INSTANTIATE_TEST_SUITE_P(Fields,
                         ModelConfigFieldTest,
                         testing::Values(BadField{"hidden_size", 0},
                                         BadField{"hidden_size", -5},
                                         BadField{"hidden_size", "128"},
                                         BadField{"hidden_size", 18446744073709551615u},
                                         BadField{"num_hidden_layers", nullptr},
                                         BadField{"num_attention_heads", 3},
                                         BadField{"head_dim", 31},
                                         BadField{"vocab_size", 1.5},
                                         BadField{"rms_norm_eps", 0},
                                         BadField{"rope_theta", -1},
                                         BadField{"rope_scaling", "llama3"},
                                         BadField{"tie_word_embeddings", 1},
                                         BadField{"eos_token_id", -1},
                                         BadField{"eos_token_id", {1, "2"}},
                                         BadField{"num_key_value_layers", 5},
                                         BadField{"num_key_value_layers", 0},
                                         BadField{"architectures", 3}),
                         [](const auto& test) {
                           return test.param.name + std::to_string(test.index);
                         });

TEST(ModelConfigTest, NonJsonIsRefused) {
  for (const char* text : {"", "{", "[]", "null", "\xff"}) {
    EXPECT_EQ(ParseModelConfig(text, "").status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton::checkpoint
