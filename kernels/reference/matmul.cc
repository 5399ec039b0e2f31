#include <cstring>

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/matmul_parts.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {
namespace {

absl::Status Multiply(const ExecContext&, const MatmulParams& params) {
  const PackedMatrix& weight = params.weight;
  for (int64_t row = 0; row < params.rows; ++row) {
    const float* x = Floats(params.x) + row * params.x_stride;
    for (int64_t column = 0; column < weight.out_features; ++column) {
      double sum = params.bias != nullptr ? double{params.bias[column]} : 0.0;
      for (int64_t k = 0; k < weight.in_features; ++k) {
        const int64_t element = column * weight.in_features + k;
        sum += double{x[k]} *
               double{LoadElement(weight.data, weight.dtype, static_cast<size_t>(element))};
      }
      float& out = Floats(params.out)[row * params.out_stride + column];
      out = static_cast<float>(params.accumulate ? double{out} + sum : sum);
    }
  }
  return absl::OkStatus();
}

}  // namespace

// Packed layout: the matrix as it is.
size_t PackedMatrixBytes(int64_t out_features, int64_t in_features, DType dtype) {
  return static_cast<size_t>(out_features) * static_cast<size_t>(in_features) * DTypeBytes(dtype);
}

absl::Status PackMatrix(const ExecContext&, const PackMatrixParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const size_t bytes = PackedMatrixBytes(params.out_features, params.in_features, params.dtype);
  if (bytes > 0) {  // an empty matrix may come without pointers
    std::memcpy(params.target, params.source, bytes);
  }
  return absl::OkStatus();
}

absl::Status Matmul(const ExecContext& context, const MatmulParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  return RunMatmulParts<RmsNorm, Multiply, Rope, SiluMul>(params, context);
}

}  // namespace baton::kernels::reference
