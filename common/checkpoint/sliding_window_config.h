// Sliding window fields of config.json.
#pragma once

#include "absl/status/status.h"

#include "common/checkpoint/config_fields.h"
#include "common/checkpoint/model_config.h"

namespace baton::checkpoint {

// Fills config.sliding_window for every layer (swiftkv.md 3.4): Llama none; Mistral the same window
// on all layers; Qwen2 and Qwen3 only when `use_sliding_window` is true, then on the layers from
// `max_window_layers` up. `layer_types`, when given, names the windowed layers instead.
// Needs config.architecture and config.num_layers.
absl::Status ReadSlidingWindow(const ConfigFields& fields, ModelConfig& config);

}  // namespace baton::checkpoint
