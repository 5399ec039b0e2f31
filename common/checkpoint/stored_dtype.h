// Element types of the safetensors format.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/core/dtype.h"

namespace baton::checkpoint {

// Bits of one element of safetensors dtype `name` ("BF16", "F8_E4M3", ...), or nothing for a name
// that the format does not know.
std::optional<uint64_t> StoredDTypeBits(std::string_view name);

// The type that Baton reads for `name` (F32, F16, BF16, I32, I64, U8), or nothing.
std::optional<kernels::DType> ReadableDType(std::string_view name);

// The safetensors name of a type.
std::string_view StoredDTypeName(kernels::DType dtype);

}  // namespace baton::checkpoint
