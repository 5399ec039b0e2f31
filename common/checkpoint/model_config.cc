#include "common/checkpoint/model_config.h"

#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "common/base/status_macros.h"
#include "common/checkpoint/config_fields.h"
#include "common/checkpoint/rope_config.h"
#include "common/checkpoint/sliding_window_config.h"

namespace baton::checkpoint {
namespace {

using nlohmann::json;

// Limits on outside numbers: far above any published model, far below overflow in size arithmetic.
constexpr int32_t kMaxWidth = 1 << 20;
constexpr int32_t kMaxVocab = 1 << 24;
constexpr int32_t kMaxLayers = 4096;
constexpr int32_t kMaxHeads = 4096;
constexpr int32_t kMaxHeadDim = 1024;
constexpr int32_t kMaxPositions = 1 << 30;
constexpr size_t kMaxConfigBytes = 16 << 20;
// rms_norm_eps and Qwen3's head_dim when config.json leaves them out: defaults of the families'
// configuration classes.
constexpr double kDefaultRmsNormEps = 1e-6;
constexpr int32_t kQwen3DefaultHeadDim = 128;

struct Family {
  std::string_view model_type;
  std::string_view class_prefix;
  Architecture architecture;
};

constexpr std::array<Family, 4> kFamilies = {{
    {"llama", "Llama", Architecture::kLlama},
    {"qwen2", "Qwen2", Architecture::kQwen2},
    {"qwen3", "Qwen3", Architecture::kQwen3},
    {"mistral", "Mistral", Architecture::kMistral},
}};

constexpr std::string_view kSupported =
    "supported: {Llama,Qwen2,Qwen3,Mistral}ForCausalLM and their SwiftKVForCausalLM forms";

std::optional<Architecture> FromClassName(std::string_view name) {
  for (const Family& family : kFamilies) {
    if (name.substr(0, family.class_prefix.size()) == family.class_prefix) {
      const std::string_view rest = name.substr(family.class_prefix.size());
      if (rest == "ForCausalLM" || rest == "SwiftKVForCausalLM") {
        return family.architecture;
      }
    }
  }
  return std::nullopt;
}

std::optional<Architecture> FromModelType(std::string_view type) {
  for (const Family& family : kFamilies) {
    if (type.substr(0, family.model_type.size()) == family.model_type) {
      const std::string_view rest = type.substr(family.model_type.size());
      if (rest.empty() || rest == "_swiftkv") {
        return family.architecture;
      }
    }
  }
  return std::nullopt;
}

absl::Status ReadArchitecture(const ConfigFields& fields, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> classes,
                         fields.Strings("architectures", 16));
  BATON_ASSIGN_OR_RETURN(const std::optional<std::string> type,
                         fields.OptionalString("model_type"));
  if (classes.empty() && !type.has_value()) {
    return fields.Invalid("architectures", "is missing, and so is `model_type`");
  }
  std::optional<Architecture> architecture;
  if (!classes.empty()) {
    architecture = FromClassName(classes.front());
    if (!architecture.has_value()) {
      return fields.Unsupported(
          "architectures",
          absl::StrCat("names \"", classes.front(), "\"; ", std::string(kSupported)));
    }
  }
  if (type.has_value()) {
    const std::optional<Architecture> by_type = FromModelType(*type);
    if (!by_type.has_value()) {
      return fields.Unsupported("model_type",
                                absl::StrCat("is \"", *type, "\"; ", std::string(kSupported)));
    }
    if (architecture.has_value() && *architecture != *by_type) {
      return fields.Invalid(
          "model_type",
          absl::StrCat("is \"", *type, "\" but `architectures` is ", classes.front()));
    }
    architecture = by_type;
  }
  config.architecture = *architecture;
  return absl::OkStatus();
}

absl::Status ReadHeads(const ConfigFields& fields, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(config.num_heads, fields.Int("num_attention_heads", 1, kMaxHeads));
  BATON_ASSIGN_OR_RETURN(const std::optional<int32_t> kv_heads,
                         fields.OptionalInt("num_key_value_heads", 1, kMaxHeads));
  // Only Llama's class defaults to multi-head attention; the others' defaults are of one size.
  if (config.architecture != Architecture::kLlama && !fields.Exists("num_key_value_heads")) {
    return fields.Invalid("num_key_value_heads", "is missing");
  }
  config.num_kv_heads = kv_heads.value_or(config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    return fields.Invalid("num_attention_heads", "must be a multiple of `num_key_value_heads`");
  }
  BATON_ASSIGN_OR_RETURN(const std::optional<int32_t> head_dim,
                         fields.OptionalInt("head_dim", 2, kMaxHeadDim));
  if (head_dim.has_value()) {
    config.head_dim = *head_dim;
  } else if (config.architecture == Architecture::kQwen3 && !fields.Exists("head_dim")) {
    config.head_dim = kQwen3DefaultHeadDim;
  } else if (config.hidden_size % config.num_heads == 0) {
    config.head_dim = config.hidden_size / config.num_heads;
  } else {
    return fields.Invalid("head_dim", "is missing and `hidden_size` is not a multiple of heads");
  }
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim) {
    return fields.Invalid("head_dim", absl::StrCat("must be even and at most ", kMaxHeadDim));
  }
  return absl::OkStatus();
}

absl::Status ReadShapes(const ConfigFields& fields, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(config.hidden_size, fields.Int("hidden_size", 1, kMaxWidth));
  BATON_ASSIGN_OR_RETURN(config.num_layers, fields.Int("num_hidden_layers", 1, kMaxLayers));
  BATON_ASSIGN_OR_RETURN(config.intermediate_size, fields.Int("intermediate_size", 1, kMaxWidth));
  BATON_ASSIGN_OR_RETURN(config.vocab_size, fields.Int("vocab_size", 1, kMaxVocab));
  BATON_ASSIGN_OR_RETURN(config.max_position_embeddings,
                         fields.Int("max_position_embeddings", 1, kMaxPositions));
  BATON_ASSIGN_OR_RETURN(const double eps,
                         fields.PositiveNumber("rms_norm_eps", kDefaultRmsNormEps));
  if (eps > 1.0) {
    return fields.Invalid("rms_norm_eps", "must be at most 1");
  }
  config.rms_norm_eps = static_cast<float>(eps);
  return ReadHeads(fields, config);
}

// Biases and norms that the family's reference implementation hard-wires or reads (swiftkv.md 3.2).
absl::Status ReadStructure(const ConfigFields& fields, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(config.tie_word_embeddings, fields.Bool("tie_word_embeddings", false));
  BATON_ASSIGN_OR_RETURN(const bool attention_bias, fields.Bool("attention_bias", false));
  BATON_ASSIGN_OR_RETURN(const bool mlp_bias, fields.Bool("mlp_bias", false));
  switch (config.architecture) {
    case Architecture::kLlama:
      config.qkv_bias = config.o_bias = attention_bias;
      config.mlp_bias = mlp_bias;
      break;
    case Architecture::kQwen2:
      config.qkv_bias = true;
      break;
    case Architecture::kQwen3:
      config.qkv_bias = config.o_bias = attention_bias;
      config.qk_norm = true;
      break;
    case Architecture::kMistral:
      break;
  }
  BATON_ASSIGN_OR_RETURN(const std::optional<std::string> activation,
                         fields.OptionalString("hidden_act"));
  if (activation.has_value() && *activation != "silu") {
    return fields.Unsupported("hidden_act", absl::StrCat("is \"", *activation, "\", not silu"));
  }
  if (fields.Present("quantization_config")) {
    return fields.Unsupported("quantization_config", "is set; weights must be f32, f16 or bf16");
  }
  return absl::OkStatus();
}

absl::Status ReadDType(const ConfigFields& fields, ModelConfig& config) {
  const char* name = fields.Present("dtype") ? "dtype" : "torch_dtype";
  BATON_ASSIGN_OR_RETURN(const std::optional<std::string> dtype, fields.OptionalString(name));
  if (!dtype.has_value() || *dtype == "bfloat16") {
    config.dtype = kernels::DType::kBF16;
  } else if (*dtype == "float16") {
    config.dtype = kernels::DType::kF16;
  } else if (*dtype == "float32") {
    config.dtype = kernels::DType::kF32;
  } else {
    return fields.Unsupported(
        name, absl::StrCat("is \"", *dtype, "\"; supported: bfloat16, float16, float32"));
  }
  return absl::OkStatus();
}

// swiftkv.md 2.1; the field `swiftkv` is ignored: a model is SwiftKV when S < L.
absl::Status ReadSwiftKv(const ConfigFields& fields, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(const std::optional<int32_t> full_layers,
                         fields.OptionalInt("num_key_value_layers", 1, config.num_layers));
  config.num_key_value_layers = full_layers.value_or(config.num_layers);
  BATON_ASSIGN_OR_RETURN(const std::optional<int32_t> group_size,
                         fields.OptionalInt("key_value_group_size", 1, kMaxLayers));
  config.key_value_group_size = config.swiftkv() ? group_size.value_or(1) : 1;
  if ((config.num_layers - config.num_key_value_layers) % config.key_value_group_size != 0) {
    return fields.Invalid("key_value_group_size",
                          absl::StrCat("must divide the ",
                                       config.num_layers - config.num_key_value_layers,
                                       " layers above `num_key_value_layers`"));
  }
  return absl::OkStatus();
}

absl::Status ReadTokens(const ConfigFields& fields, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(const std::optional<int32_t> bos,
                         fields.OptionalInt("bos_token_id", -1, kMaxVocab));
  config.bos_token_id = bos.value_or(-1);
  BATON_ASSIGN_OR_RETURN(config.eos_token_ids, fields.IntOrInts("eos_token_id", kMaxVocab));
  return absl::OkStatus();
}

// generation_config.json overrides the stop ids. Files with broken JSON have been published
// (swiftkv.md 3.5), so a file that can't be used is a warning, not an error.
void ReadGenerationConfig(std::string_view text, ModelConfig& config) {
  if (text.empty()) {
    return;
  }
  const json parsed = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    config.warnings.emplace_back(
        "generation_config.json is not a JSON object; using the stop ids of config.json");
    return;
  }
  absl::StatusOr<std::vector<int32_t>> eos =
      ConfigFields(parsed, "generation_config.json").IntOrInts("eos_token_id", kMaxVocab);
  if (!eos.ok()) {
    config.warnings.push_back(
        absl::StrCat(eos.status().message(), "; using the stop ids of config.json"));
  } else if (!eos->empty()) {
    config.eos_token_ids = *std::move(eos);
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json,
                                             std::string_view generation_config_json) {
  if (config_json.size() > kMaxConfigBytes || generation_config_json.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json or generation_config.json exceeds ", kMaxConfigBytes, " bytes"));
  }
  const json parsed =
      json::parse(config_json.begin(), config_json.end(), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError("config.json is not a JSON object");
  }
  const ConfigFields fields(parsed, "config.json");
  ModelConfig config;
  BATON_RETURN_IF_ERROR(ReadArchitecture(fields, config));
  BATON_RETURN_IF_ERROR(ReadShapes(fields, config));
  BATON_RETURN_IF_ERROR(ReadStructure(fields, config));
  BATON_RETURN_IF_ERROR(ReadDType(fields, config));
  BATON_RETURN_IF_ERROR(ReadRope(fields, config));
  BATON_RETURN_IF_ERROR(ReadSlidingWindow(fields, config));
  BATON_RETURN_IF_ERROR(ReadSwiftKv(fields, config));
  BATON_RETURN_IF_ERROR(ReadTokens(fields, config));
  ReadGenerationConfig(generation_config_json, config);
  return config;
}

}  // namespace baton::checkpoint
