#include "kernels/ops/param_checker.h"
#include "kernels/ops/validate.h"

namespace baton::kernels {
namespace {

void CheckLayout(const HiddenRowLayout& layout, ParamChecker& check) {
  const bool coded =
      layout.dtype == DType::kF32 || layout.dtype == DType::kBF16 || layout.dtype == DType::kF8E4M3;
  check.Positive("layout.width", layout.width)
      .Require(
          coded, "layout.dtype", static_cast<int64_t>(layout.dtype), "must be f32, bf16 or f8e4m3");
}

}  // namespace

absl::Status Validate(const HiddenEncodeParams& params) {
  ParamChecker check("hidden_encode");
  check.NotNegative("rows", params.rows);
  if (params.rows > 0) {
    CheckLayout(params.layout, check);
    check.AtLeast("x_stride", params.x_stride, params.layout.width)
        .NotNull("x", params.x)
        .NotNull("coded", params.coded);
  }
  return check.status();
}

absl::Status Validate(const HiddenDecodeParams& params) {
  ParamChecker check("hidden_decode");
  check.NotNegative("rows", params.rows);
  if (params.rows > 0) {
    CheckLayout(params.layout, check);
    check.AtLeast("out_stride", params.out_stride, params.layout.width)
        .NotNull("coded", params.coded)
        .NotNull("out", params.out);
  }
  return check.status();
}

}  // namespace baton::kernels
