// The tensors of a checkpoint that a configuration needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/checkpoint/model_config.h"

namespace baton::model {

struct RequiredTensor {
  std::string name;
  std::vector<int64_t> shape;

  bool operator==(const RequiredTensor&) const = default;
};

// Exactly what LoadWeights reads, without reading it: for tools that inspect a checkpoint or write
// a synthetic one. Order: embedding, layers ascending, SwiftKV fan-out, final norm, head.
std::vector<RequiredTensor> RequiredTensors(const checkpoint::ModelConfig& config);

}  // namespace baton::model
