#include "common/checkpoint/stored_dtype.h"

#include <array>
#include <utility>

namespace baton::checkpoint {
namespace {

using kernels::DType;

// safetensors format description, "Dtype" list.
constexpr std::array<std::pair<std::string_view, uint64_t>, 20> kBits = {{
    {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8},    {"U8", 8},
    {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
    {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
    {"F32", 32}, {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

constexpr std::array<std::pair<std::string_view, DType>, 6> kReadable = {{
    {"F32", DType::kF32},
    {"BF16", DType::kBF16},
    {"F16", DType::kF16},
    {"I32", DType::kI32},
    {"I64", DType::kI64},
    {"U8", DType::kU8},
}};

}  // namespace

std::optional<uint64_t> StoredDTypeBits(std::string_view name) {
  for (const auto& [candidate, bits] : kBits) {
    if (candidate == name) {
      return bits;
    }
  }
  return std::nullopt;
}

std::optional<DType> ReadableDType(std::string_view name) {
  for (const auto& [candidate, dtype] : kReadable) {
    if (candidate == name) {
      return dtype;
    }
  }
  return std::nullopt;
}

std::string_view StoredDTypeName(DType dtype) {
  for (const auto& [name, candidate] : kReadable) {
    if (candidate == dtype) {
      return name;
    }
  }
  return "";
}

}  // namespace baton::checkpoint
