// Checkpoints made up in memory.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/checkpoint/checkpoint.h"

namespace baton::model {

// Maps a tensor name to the one whose values it has.
using Alias = std::function<std::string(const std::string&)>;

// Every tensor of any name and shape is a pure function of (seed, alias(name)). Unlike the
// checkpoint of --random-weights, norm weights and biases vary, so that a test notices a wrong one.
std::unique_ptr<checkpoint::Checkpoint> MakeTestCheckpoint(const checkpoint::ModelConfig& config,
                                                           uint64_t seed,
                                                           Alias alias = nullptr);

// A small configuration: hidden 48, 4 heads over 2 KV heads of dim 16, intermediate 40, vocab 61.
checkpoint::ModelConfig SmallConfig(checkpoint::Architecture architecture, int32_t num_layers);

// The same as a SwiftKV model.
checkpoint::ModelConfig SmallSwiftKvConfig(checkpoint::Architecture architecture,
                                           int32_t num_layers,
                                           int32_t full_layers,
                                           int32_t group_size);

}  // namespace baton::model
