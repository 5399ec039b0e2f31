// What a step of a model costs at least, from its shapes.
#pragma once

#include <cstdint>

#include "common/checkpoint/model_config.h"

namespace baton::model {

// Of a model with bf16 weights and pages, whose prompts' rows survive the full layers as
// ModelSequences has it.
class ModelCost {
 public:
  // Borrows the configuration.
  explicit ModelCost(const checkpoint::ModelConfig& config) : config_(config) {}

  // Multiplications and additions of whole prompts of `tokens` tokens: linear layers for the rows
  // that they are done for, logits of last rows, and of attention what the causal mask leaves.
  double PrefillOperations(int64_t sequences, int64_t tokens) const;
  // Bytes of all weights but the embedding, of which a step reads a few rows.
  double WeightBytes() const;
  // Bytes of keys and values that a decode step reads of so many sequences of `tokens` tokens.
  double KvBytes(int64_t sequences, int64_t tokens) const;

 private:
  double full_layers() const { return config_.num_key_value_layers; }
  double upper_layers() const { return config_.num_layers - config_.num_key_value_layers; }
  double query_width() const { return 1.0 * config_.num_heads * config_.head_dim; }
  double kv_width() const { return 1.0 * config_.num_kv_heads * config_.head_dim; }
  // Weights of a layer above the full ones; a full layer has those of its keys and values too.
  double UpperLayer() const;
  double FullLayer() const;
  // Of the keys and values of all upper layers.
  double FanOut() const;
  double Head() const { return 1.0 * config_.hidden_size * config_.vocab_size; }

  const checkpoint::ModelConfig& config_;
};

}  // namespace baton::model
