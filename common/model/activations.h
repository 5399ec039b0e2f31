// Activation memory of one model.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "common/checkpoint/model_config.h"
#include "kernels/core/memory.h"
#include "kernels/ops/op_table.h"

namespace baton::model {

// Made once for the largest step, in memory of the back end; of the dtype that the back end's
// activations have. Residual streams hold every row of a step, the rest one tile (row_set.h).
struct Activations {
  // kResourceExhausted when the back end lacks the memory.
  static absl::StatusOr<Activations> Create(const checkpoint::ModelConfig& config,
                                            int32_t max_step_rows,
                                            const kernels::OpTable& ops,
                                            kernels::MemorySpace& space);

  kernels::Memory residual;   // [max_step_rows, hidden]
  kernels::Memory survivors;  // [max_step_rows, hidden], SwiftKV models only
  kernels::Memory normed;     // [tile, hidden]
  kernels::Memory projected;  // [tile, widest of Q+K+V and the fan-out]
  kernels::Memory attended;   // [tile, heads * head_dim]
  kernels::Memory lse;        // [tile, heads] fp32, log-sum-exps of attention
  kernels::Memory gate_up;    // [tile, 2 * intermediate]
  kernels::Memory gated;      // [tile, intermediate]
};

}  // namespace baton::model
