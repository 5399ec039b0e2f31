#include "common/checkpoint/sliding_window_config.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"

namespace baton::checkpoint {
namespace {

constexpr int32_t kMaxWindow = 1 << 30;
// Defaults of the families' configuration classes.
constexpr int32_t kMistralDefaultWindow = 4096;
constexpr int32_t kQwenDefaultMaxWindowLayers = 28;

// The window that is in force for this family's sliding layers, 0 for none.
absl::StatusOr<int32_t> ActiveWindow(const ConfigFields& fields, Architecture architecture) {
  if (architecture == Architecture::kLlama) {
    return 0;
  }
  BATON_ASSIGN_OR_RETURN(const std::optional<int32_t> window,
                         fields.OptionalInt("sliding_window", 1, kMaxWindow));
  if (architecture == Architecture::kMistral) {
    return fields.Exists("sliding_window") ? window.value_or(0) : kMistralDefaultWindow;
  }
  BATON_ASSIGN_OR_RETURN(const bool use, fields.Bool("use_sliding_window", false));
  if (use && !window.has_value()) {
    return fields.Invalid("sliding_window", "is missing although `use_sliding_window` is true");
  }
  return use ? *window : 0;
}

absl::Status ReadLayerTypes(const ConfigFields& fields, int32_t window, ModelConfig& config) {
  const size_t num_layers = static_cast<size_t>(config.num_layers);
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> types,
                         fields.Strings("layer_types", num_layers));
  if (types.size() != num_layers) {
    return fields.Invalid("layer_types", absl::StrCat("must name ", num_layers, " layers"));
  }
  for (size_t i = 0; i < num_layers; ++i) {
    if (types[i] == "full_attention") {
      continue;
    }
    if (types[i] != "sliding_attention") {
      return fields.Unsupported("layer_types", absl::StrCat("names \"", types[i], "\""));
    }
    if (window == 0) {
      return fields.Invalid("layer_types", "has sliding_attention but no sliding window is active");
    }
    config.sliding_window[i] = window;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadSlidingWindow(const ConfigFields& fields, ModelConfig& config) {
  config.sliding_window.assign(static_cast<size_t>(config.num_layers), 0);
  if (config.architecture == Architecture::kLlama) {
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(const int32_t window, ActiveWindow(fields, config.architecture));
  if (fields.Present("layer_types")) {
    return ReadLayerTypes(fields, window, config);
  }
  int32_t first_layer = 0;
  if (config.architecture != Architecture::kMistral) {
    BATON_ASSIGN_OR_RETURN(const std::optional<int32_t> first,
                           fields.OptionalInt("max_window_layers", 0, kMaxWindow));
    first_layer = first.value_or(kQwenDefaultMaxWindowLayers);
  }
  for (int32_t i = first_layer; i < config.num_layers; ++i) {
    config.sliding_window[static_cast<size_t>(i)] = window;
  }
  return absl::OkStatus();
}

}  // namespace baton::checkpoint
