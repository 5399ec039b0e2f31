// Shapes of the model that is measured.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "common/checkpoint/model_config.h"

namespace baton::model {

inline constexpr int32_t kLlamaLayers = 32;

// Llama-3.1-8B as its config.json has it. With fewer `full_layers` than kLlamaLayers, the SwiftKV
// variant whose other layers take their keys and values, each its own, from the hidden state that
// enters the first of them (swiftkv.md 2.1).
absl::StatusOr<checkpoint::ModelConfig> LlamaConfig(int32_t full_layers);

}  // namespace baton::model
