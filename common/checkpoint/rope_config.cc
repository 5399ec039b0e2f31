#include "common/checkpoint/rope_config.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "common/base/status_macros.h"

namespace baton::checkpoint {
namespace {

// rope_theta's default in every supported family's configuration class.
constexpr double kDefaultTheta = 10000.0;
constexpr int32_t kMaxPositions = 1 << 30;

absl::Status ReadLlama3Scaling(const ConfigFields& fields, RopeScaling& scaling) {
  for (const char* name : {"factor", "low_freq_factor", "high_freq_factor"}) {
    if (!fields.Present(name)) {
      return fields.Invalid(name, "is missing (rope type llama3 needs it)");
    }
  }
  BATON_ASSIGN_OR_RETURN(const double factor, fields.PositiveNumber("factor", 1.0));
  BATON_ASSIGN_OR_RETURN(const double low, fields.PositiveNumber("low_freq_factor", 1.0));
  BATON_ASSIGN_OR_RETURN(const double high, fields.PositiveNumber("high_freq_factor", 4.0));
  BATON_ASSIGN_OR_RETURN(scaling.original_max_position_embeddings,
                         fields.Int("original_max_position_embeddings", 1, kMaxPositions));
  if (factor < 1.0 || factor > 1e6) {
    return fields.Invalid("factor", "must be in [1, 1e6]");
  }
  if (high <= low) {
    return fields.Invalid("high_freq_factor", "must be greater than `low_freq_factor`");
  }
  scaling.factor = static_cast<float>(factor);
  scaling.low_freq_factor = static_cast<float>(low);
  scaling.high_freq_factor = static_cast<float>(high);
  return absl::OkStatus();
}

absl::Status ReadScaling(const ConfigFields& fields, RopeScaling& scaling) {
  BATON_ASSIGN_OR_RETURN(std::optional<std::string> type, fields.OptionalString("rope_type"));
  if (!type.has_value()) {
    BATON_ASSIGN_OR_RETURN(type, fields.OptionalString("type"));
  }
  if (!type.has_value() || *type == "default") {
    return absl::OkStatus();
  }
  if (*type != "llama3") {
    return fields.Unsupported("rope_type",
                              absl::StrCat("is \"", *type, "\"; supported: default, llama3"));
  }
  return ReadLlama3Scaling(fields, scaling);
}

}  // namespace

absl::Status ReadRope(const ConfigFields& fields, ModelConfig& config) {
  BATON_ASSIGN_OR_RETURN(config.rope_theta, fields.PositiveNumber("rope_theta", kDefaultTheta));
  BATON_ASSIGN_OR_RETURN(const double rotary, fields.PositiveNumber("partial_rotary_factor", 1.0));
  if (rotary != 1.0) {
    return fields.Unsupported("partial_rotary_factor", "must be 1");
  }
  BATON_ASSIGN_OR_RETURN(const nlohmann::json* parameters, fields.Object("rope_parameters"));
  if (parameters != nullptr) {
    const ConfigFields inner(*parameters, "config.json rope_parameters");
    if (inner.Present("full_attention") || inner.Present("sliding_attention")) {
      return fields.Unsupported("rope_parameters", "has parameters per layer type");
    }
    BATON_ASSIGN_OR_RETURN(config.rope_theta,
                           inner.PositiveNumber("rope_theta", config.rope_theta));
    return ReadScaling(inner, config.rope_scaling);
  }
  BATON_ASSIGN_OR_RETURN(const nlohmann::json* scaling, fields.Object("rope_scaling"));
  if (scaling != nullptr) {
    return ReadScaling(ConfigFields(*scaling, "config.json rope_scaling"), config.rope_scaling);
  }
  return absl::OkStatus();
}

}  // namespace baton::checkpoint
