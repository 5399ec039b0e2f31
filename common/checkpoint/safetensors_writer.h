// Writes safetensors files.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/checkpoint/tensor_view.h"

namespace baton::checkpoint {

struct NamedTensor {
  std::string name;
  TensorView tensor;  // bytes borrowed for the call
};

// The bytes of a safetensors file up to the data section: header size and JSON, padded with spaces
// so that the data starts at a multiple of 8. kInvalidArgument for a name given twice or a tensor
// whose bytes do not match its shape and dtype.
absl::StatusOr<std::string> SafetensorsPreamble(std::span<const NamedTensor> tensors);

// Writes `tensors` in the given order to `path`, replacing the file only when all is written
// (through `path`.tmp). Errors name the path.
absl::Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors);

}  // namespace baton::checkpoint
