// Conversion of stored tensors to the types that weights have in memory.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"

#include "common/checkpoint/tensor_view.h"

namespace baton::checkpoint {

// Writes every element of `source` as `target_dtype` (f32 or bf16) to `target`, which holds
// num_elements() of them. f16 and bf16 widen exactly; a bf16 target rounds to nearest even.
// kInvalidArgument for a source that is not f32, f16 or bf16, or for another target.
absl::Status ConvertTensor(const TensorView& source,
                           kernels::DType target_dtype,
                           std::span<std::byte> target);

}  // namespace baton::checkpoint
