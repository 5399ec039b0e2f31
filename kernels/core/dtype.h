// Element types that a tensor in Baton may have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace baton::kernels {

enum class DType : uint8_t {
  kF32,
  kBF16,
  kF16,
  kI32,
  kI64,
  kU8,
  kF8E4M3,  // float8_e4m3fn: 4 exponent bits, 3 mantissa bits, no infinity (float8.h)
};

// Size of one element in bytes.
constexpr size_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kI64:
      return 8;
    case DType::kU8:
    case DType::kF8E4M3:
      return 1;
  }
  return 0;
}

// Name as written in configuration and messages: "f32", "bf16", ...
constexpr std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
    case DType::kF8E4M3:
      return "f8e4m3";
  }
  return "unknown";
}

}  // namespace baton::kernels
