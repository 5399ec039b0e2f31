// The keys of a prompt as they were before RoPE.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "common/kv/codec/encoded_kv.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"

namespace baton::lab {

// How keys were rotated. What it points to is borrowed.
struct KeyRotation {
  const kernels::OpTable& ops;
  const kernels::ExecContext& exec;
  const float* inverse_frequencies = nullptr;  // [head_dim / 2]
};

// What ShadowKV factors: tokens [0, tokens) of a stored layer, un-rotated and less `bias`, which is
// that of the layer or null; [tokens][kv_heads][head_dim].
absl::StatusOr<std::vector<float>> ReadPlainKeys(const KeyRotation& rotation,
                                                 const kv::WorkingKv& working,
                                                 int32_t kv_layer,
                                                 const float* bias,
                                                 int64_t tokens);

}  // namespace baton::lab
