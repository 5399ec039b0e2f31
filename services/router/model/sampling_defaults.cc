#include "services/router/model/sampling_defaults.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/text/bounded_json.h"

namespace baton::router {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

// Reads a number into *value where the field is there and not null.
absl::Status ReadNumber(
    const nlohmann::json& config, const char* field, float min, float max, float* value) {
  const auto found = config.find(field);
  if (found == config.end() || found->is_null()) {
    return absl::OkStatus();
  }
  const float number = found->is_number() ? found->get<float>() : std::nanf("");
  if (!(number >= min && number <= max)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "generation_config.json: ", field, " must be a number from ", min, " to ", max));
  }
  *value = number;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SamplingDefaults> ParseSamplingDefaults(std::string_view generation_config_json) {
  SamplingDefaults defaults;
  if (generation_config_json.empty()) {
    return defaults;
  }
  BATON_ASSIGN_OR_RETURN(const nlohmann::json config,
                         text::ParseBoundedJson(generation_config_json, text::kRequestJsonLimits));
  if (!config.is_object()) {
    return absl::InvalidArgumentError("generation_config.json is not a JSON object");
  }
  float top_k = 0.0f;
  BATON_RETURN_IF_ERROR(ReadNumber(config, "temperature", 0.0f, kLargest, &defaults.temperature));
  BATON_RETURN_IF_ERROR(
      ReadNumber(config, "top_p", std::numeric_limits<float>::min(), 1.0f, &defaults.top_p));
  BATON_RETURN_IF_ERROR(ReadNumber(config, "top_k", 0.0f, 1e6f, &top_k));
  BATON_RETURN_IF_ERROR(ReadNumber(config, "min_p", 0.0f, 1.0f, &defaults.min_p));
  BATON_RETURN_IF_ERROR(ReadNumber(config,
                                   "repetition_penalty",
                                   std::numeric_limits<float>::min(),
                                   kLargest,
                                   &defaults.repetition_penalty));
  defaults.top_k = static_cast<uint32_t>(top_k);
  const auto do_sample = config.find("do_sample");
  if (do_sample != config.end() && do_sample->is_boolean() && !do_sample->get<bool>()) {
    defaults.temperature = 0.0f;
  }
  return defaults;
}

}  // namespace baton::router
