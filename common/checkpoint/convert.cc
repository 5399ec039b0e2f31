#include "common/checkpoint/convert.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

#include "kernels/core/half.h"

namespace baton::checkpoint {
namespace {

using kernels::DType;

// Stored bytes need not be aligned, so elements are copied out, which compiles to a plain load.
template <typename Source, typename Target, typename Fn>
void ForEachElement(std::span<const std::byte> source, std::span<std::byte> target, Fn convert) {
  const size_t count = source.size() / sizeof(Source);
  for (size_t i = 0; i < count; ++i) {
    Source in;
    std::memcpy(&in, source.data() + i * sizeof(Source), sizeof(Source));
    const Target out = convert(in);
    std::memcpy(target.data() + i * sizeof(Target), &out, sizeof(Target));
  }
}

std::string Name(DType dtype) { return std::string(kernels::DTypeName(dtype)); }

}  // namespace

absl::Status ConvertTensor(const TensorView& source,
                           DType target_dtype,
                           std::span<std::byte> target) {
  using kernels::BF16ToF32;
  using kernels::F16ToF32;
  using kernels::F32ToBF16;
  if (target_dtype != DType::kF32 && target_dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights can't be kept as ", Name(target_dtype), ", only as f32 or bf16"));
  }
  const size_t count = source.bytes.size() / kernels::DTypeBytes(source.dtype);
  if (target.size() != count * kernels::DTypeBytes(target_dtype)) {
    return absl::InvalidArgumentError("target has the wrong size");
  }
  if (source.dtype == target_dtype) {
    if (!target.empty()) {
      std::memcpy(target.data(), source.bytes.data(), target.size());
    }
    return absl::OkStatus();
  }
  const bool widen = target_dtype == DType::kF32;
  switch (source.dtype) {
    case DType::kBF16:
      ForEachElement<uint16_t, float>(source.bytes, target, BF16ToF32);
      return absl::OkStatus();
    case DType::kF32:
      ForEachElement<float, uint16_t>(source.bytes, target, F32ToBF16);
      return absl::OkStatus();
    case DType::kF16:
      if (widen) {
        ForEachElement<uint16_t, float>(source.bytes, target, F16ToF32);
      } else {
        ForEachElement<uint16_t, uint16_t>(
            source.bytes, target, [](uint16_t bits) { return F32ToBF16(F16ToF32(bits)); });
      }
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("has dtype ", Name(source.dtype), "; weights must be f32, f16 or bf16"));
  }
}

}  // namespace baton::checkpoint
