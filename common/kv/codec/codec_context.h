// What the codecs of one worker share.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_format.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/ops/op_table.h"

namespace baton::kv {

// The rotation of a model's keys, for formats that keep them unrotated. One table serves all
// layers.
struct CodecRope {
  std::vector<float> inverse_frequencies;  // [head_dim / 2]
  int64_t max_positions = 0;
};

// Pointers are borrowed and outlive every codec.
struct CodecContext {
  const kernels::OpTable* ops = nullptr;
  kernels::ExecContext exec;  // of the executor thread
  // Where pools lie; null: in the memory that the ops of `exec` work on.
  kernels::MemorySpace* kv_memory = nullptr;
  KvDimensions dimensions;
  // Stored layers that have their own KV projections over the layer's input; fewer than
  // dimensions.layers for a SwiftKV model, whose upper ones are projections of one hidden state.
  int32_t full_layers = 0;
  bool shares_layers = false;  // several model layers read a stored one (AcrossKV)
  int32_t hidden_size = 0;
  int32_t heads = 0;                             // query heads
  kernels::DType dtype = kernels::DType::kBF16;  // of working pages and of what stays exact
  CodecRope rope;
  std::vector<const float*> key_bias;  // by stored layer: [kv_heads x head_dim] or null; or empty
  std::shared_ptr<const KvCalibration> calibration = {};  // of the model; null: none

  kernels::MemorySpace& pool_memory() const {
    return kv_memory != nullptr ? *kv_memory : *exec.memory;
  }
};

}  // namespace baton::kv
