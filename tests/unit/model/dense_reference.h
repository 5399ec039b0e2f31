// A naive forward pass, written from the definition and not from the product.
#pragma once

#include <cstdint>
#include <vector>

#include "common/checkpoint/checkpoint.h"

namespace baton::model {

struct DenseResult {
  // [tokens][vocab]
  std::vector<std::vector<double>> logits;
  // Keys after RoPE and values of every layer, AcrossKV groups copied per layer:
  // [layers][tokens][kv_heads * head_dim].
  std::vector<std::vector<std::vector<double>>> keys;
  std::vector<std::vector<std::vector<double>>> values;
};

// Runs every token through every layer in double precision, without pages, packing, tiles or
// survivors. For a SwiftKV model each upper layer computes its own copy of its group's K and V from
// the normalised residual stream entering layer S (swiftkv.md 1.1, 1.4).
DenseResult DenseForward(const checkpoint::Checkpoint& checkpoint,
                         const std::vector<int32_t>& tokens);

}  // namespace baton::model
