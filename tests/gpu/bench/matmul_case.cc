#include "tests/gpu/bench/matmul_case.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/matmul_parts.h"
#include "kernels/ops/params.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/fill.h"
#include "tests/gpu/bench/relative_difference.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kSeed = 20240525;
// Columns of a row that are computed on the host too.
constexpr int64_t kChecked = 1024;

absl::Status RmsNorm(const ExecContext& context, const RmsNormParams& params) {
  return CudaOps()->rms_norm(context, params);
}
absl::Status Multiply(const ExecContext& context, const MatmulParams& params) {
  return CudaOps()->matmul(context, params);
}
absl::Status Rope(const ExecContext& context, const RopeParams& params) {
  return CudaOps()->rope(context, params);
}
absl::Status SiluMul(const ExecContext& context, const SiluMulParams& params) {
  return CudaOps()->silu_mul(context, params);
}

std::vector<float> Widened(const std::vector<uint16_t>& bits) {
  std::vector<float> values(bits.size());
  std::transform(bits.begin(), bits.end(), values.begin(), BF16ToF32);
  return values;
}

}  // namespace

MatmulCase::MatmulCase(const LinearLayer& layer, int32_t rows, MatmulParts parts)
    : BenchCase({.op = "matmul", .format = "bf16", .variant = layer.name, .rows = rows}),
      layer_(layer),
      parts_(parts) {}

absl::Status MatmulCase::Prepare(const DeviceQueue& queue) {
  const int64_t weights = kLayers * layer_.out_features * layer_.in_features;
  const int64_t inputs = rows() * layer_.in_features;
  weights_ = arena_.Allocate<uint16_t>(weights);
  x_ = arena_.Allocate<uint16_t>(inputs);
  out_ = arena_.Allocate<std::byte>(rows() * layer_.out_features *
                                    static_cast<int64_t>(out_element()));
  if (parts_ != MatmulParts::kNone) {
    const std::vector<float> angles(static_cast<size_t>(rows() * kHeadDim / 2), 0.7f);
    norm_weight_ = arena_.Upload(std::vector<float>(static_cast<size_t>(layer_.in_features), 1.0f));
    cosines_ = arena_.Upload(angles);
    sines_ = arena_.Upload(angles);
    normed_ = arena_.Allocate<uint16_t>(inputs);
    gate_up_ = arena_.Allocate<uint16_t>(rows() * layer_.out_features);
  }
  BATON_RETURN_IF_ERROR(arena_.status());
  // Results are about as large as the values of x.
  const float scale = std::sqrt(3.0f / static_cast<float>(layer_.in_features));
  BATON_RETURN_IF_ERROR(FillBf16(queue, weights_, weights, scale, kSeed));
  BATON_RETURN_IF_ERROR(FillBf16(queue, x_, inputs, 2.0f, kSeed + 1));
  return queue.Wait();
}

MatmulParams MatmulCase::Params(int32_t layer) const {
  const uint16_t* weight = weights_ + layer * layer_.out_features * layer_.in_features;
  return {.x = x_,
          .x_stride = layer_.in_features,
          .weight = {.data = reinterpret_cast<const std::byte*>(weight),
                     .out_features = layer_.out_features,
                     .in_features = layer_.in_features,
                     .dtype = DType::kBF16},
          .rows = rows(),
          .out = out_,
          .out_stride = layer_.out_features,
          .wide = layer_.wide};
}

void MatmulCase::AddParts(MatmulParams& params) const {
  if (layer_.norm) params.norm = {.weight = norm_weight_, .normed = normed_};
  if (layer_.rotated_heads > 0) {
    params.rope = {.cosines = cosines_,
                   .sines = sines_,
                   .heads = layer_.rotated_heads,
                   .half_dim = kHeadDim / 2};
  }
  if (layer_.gated) params.gate_up = gate_up_;
}

absl::Status MatmulCase::Run(const ExecContext& context, int32_t layer, int32_t) {
  MatmulParams params = Params(layer);
  if (parts_ != MatmulParts::kNone) AddParts(params);
  return parts_ == MatmulParts::kSeparate
             ? RunMatmulParts<RmsNorm, Multiply, Rope, SiluMul>(params, context)
             : Multiply(context, params);
}

absl::StatusOr<double> MatmulCase::Error(const ExecContext& context) {
  BATON_RETURN_IF_ERROR(Multiply(context, Params(0)));
  BATON_RETURN_IF_ERROR(context.queue->Wait());
  const int64_t first = std::max<int64_t>(0, layer_.out_features - kChecked);
  double error = 0.0;
  for (const int64_t row : {int64_t{0}, rows() - 1}) {
    BATON_ASSIGN_OR_RETURN(const std::vector<float> got, OnDevice(row, first));
    BATON_ASSIGN_OR_RETURN(const std::vector<float> want, OnHost(row, first));
    const double here = RelativeDifference(got, want);
    error = here <= error ? error : here;  // a NaN stays
    if (std::isnan(error)) break;
  }
  return error;
}

absl::StatusOr<std::vector<float>> MatmulCase::OnDevice(int64_t row, int64_t first) const {
  const int64_t count = layer_.out_features - first;
  const int64_t element = row * layer_.out_features + first;
  if (layer_.wide) {
    return Downloaded(reinterpret_cast<const float*>(out_) + element, count);
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<uint16_t> bits,
                         Downloaded(reinterpret_cast<const uint16_t*>(out_) + element, count));
  return Widened(bits);
}

absl::StatusOr<std::vector<float>> MatmulCase::OnHost(int64_t row, int64_t first) const {
  const int64_t in = layer_.in_features;
  const int64_t count = layer_.out_features - first;
  BATON_ASSIGN_OR_RETURN(const std::vector<uint16_t> x_bits, Downloaded(x_ + row * in, in));
  BATON_ASSIGN_OR_RETURN(const std::vector<uint16_t> weight,
                         Downloaded(weights_ + first * in, count * in));
  const std::vector<float> x = Widened(x_bits);
  std::vector<float> out;
  out.reserve(static_cast<size_t>(count));
  for (auto w = weight.begin(); w != weight.end(); w += in) {
    double sum = 0.0;
    for (int64_t k = 0; k < in; ++k) {
      sum += double{x[static_cast<size_t>(k)]} * double{BF16ToF32(w[k])};
    }
    out.push_back(static_cast<float>(sum));
  }
  return out;
}

double MatmulCase::bytes() const {
  const auto out = static_cast<double>(layer_.out_features);
  const auto in = static_cast<double>(layer_.in_features);
  const auto count = static_cast<double>(rows());
  return 2.0 * out * in + 2.0 * count * in + static_cast<double>(out_element()) * count * out;
}

double MatmulCase::operations() const {
  return 2.0 * static_cast<double>(rows()) * static_cast<double>(layer_.out_features) *
         static_cast<double>(layer_.in_features);
}

}  // namespace baton::kernels::cuda
