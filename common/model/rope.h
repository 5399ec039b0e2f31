// Rotary position embedding: the frequencies of a configuration.
#pragma once

#include <vector>

#include "common/checkpoint/model_config.h"

namespace baton::model {

// inv_i = theta^(-2i / head_dim) for i in [0, head_dim / 2), stretched by the "llama3" rule when
// config.rope_scaling.factor is not 1 (swiftkv.md 3.3). Computed in double, rounded once.
std::vector<float> RopeInverseFrequencies(const checkpoint::ModelConfig& config);

}  // namespace baton::model
