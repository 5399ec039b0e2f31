// Activation memory of one model.
#pragma once

#include <cstdint>

#include "common/checkpoint/model_config.h"
#include "kernels/core/buffer.h"

namespace baton::model {

// Made once for the largest step; all f32. Residual streams hold every row of a step, the rest one
// tile (row_set.h).
struct Activations {
  Activations(const checkpoint::ModelConfig& config, int32_t max_step_rows);

  kernels::Buffer residual;   // [max_step_rows, hidden]
  kernels::Buffer survivors;  // [max_step_rows, hidden], SwiftKV models only
  kernels::Buffer normed;     // [tile, hidden]
  kernels::Buffer projected;  // [tile, widest of Q+K+V and the fan-out]
  kernels::Buffer attended;   // [tile, heads * head_dim]
  kernels::Buffer gate_up;    // [tile, 2 * intermediate]
  kernels::Buffer gated;      // [tile, intermediate]
};

}  // namespace baton::model
