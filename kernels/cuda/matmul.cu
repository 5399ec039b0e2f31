#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "kernels/core/dtype.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/cublas/matmul_plans.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/matmul_few_rows.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/matmul_parts.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 256;
// Room for a bias behind cuBLASLt's scratch memory: 2^19 features, 2^18 when wide.
constexpr size_t kBiasBytes = size_t{1} << 20;

// `field` names the dtype of a weight.
absl::Status CheckBf16(absl::string_view field, DType dtype) {
  if (dtype == DType::kBF16) {
    return absl::OkStatus();
  }
  const std::string_view name = DTypeName(dtype);
  return absl::UnimplementedError(absl::StrCat(field,
                                               " is ",
                                               absl::string_view(name.data(), name.size()),
                                               "; the CUDA back end has bf16 alone"));
}

absl::Status Check(const MatmulParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  ParamChecker check("matmul");
  if (params.rows > 0 && params.weight.out_features > 0) {
    check.Positive("weight.in_features", params.weight.in_features);
  }
  return check.ok() ? CheckBf16("matmul: weight.dtype", params.weight.dtype) : check.status();
}

__global__ void __launch_bounds__(kThreads)
    RoundBiasKernel(const float* bias, int64_t count, uint16_t* target) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) {
    const float value[1] = {bias[i]};
    StoreBf16(target + i, value);
  }
}

// Brings the bias to `target` in the type of the result, which is the only one that cuBLASLt adds.
// It does so in fp32, before it rounds the sum, so that the bias of a checkpoint, which is bf16,
// costs no accuracy; one added to the finished product would have every sum rounded twice. What the
// result holds is not so lucky: most kernels round the product before they add it, which is what a
// residual connection in bf16 does everywhere else, too.
absl::Status PlaceBias(const MatmulParams& params, std::byte* target, cudaStream_t stream) {
  const int64_t count = params.weight.out_features;
  if (params.wide) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    return ToStatus(cudaMemcpyAsync(target, params.bias, bytes, cudaMemcpyDeviceToDevice, stream),
                    "matmul");
  }
  const auto blocks = static_cast<uint32_t>((count + kThreads - 1) / kThreads);
  RoundBiasKernel<<<blocks, kThreads, 0, stream>>>(
      params.bias, count, reinterpret_cast<uint16_t*>(target));
  return ToStatus(cudaGetLastError(), "matmul");
}

// The workspace: cuBLASLt's scratch memory, then the bias.
absl::Status CheckWorkspace(const MatmulParams& params, size_t workspace_bytes) {
  const size_t element = params.wide ? sizeof(float) : sizeof(uint16_t);
  const size_t bias =
      params.bias == nullptr ? 0 : static_cast<size_t>(params.weight.out_features) * element;
  const size_t needed = MatmulPlans::kScratchBytes + bias;
  if (workspace_bytes >= needed) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "matmul: workspace has ", workspace_bytes, " bytes but ", needed, " are needed"));
}

// A product alone.
absl::Status Multiply(const ExecContext& context, const MatmulParams& params) {
  const PackedMatrix& weight = params.weight;
  DeviceQueue& queue = *context.queue;
  if (HasFewRows(queue, params)) {
    return MatmulFewRows(queue, params);
  }
  if (absl::Status status = CheckWorkspace(params, queue.workspace().size()); !status.ok()) {
    return status;
  }
  const absl::StatusOr<MatmulPlans*> plans = queue.matmul_plans();
  if (!plans.ok()) {
    return plans.status();
  }
  std::byte* scratch = queue.workspace().data();
  std::byte* bias = scratch + MatmulPlans::kScratchBytes;
  if (params.bias != nullptr) {
    if (absl::Status status = PlaceBias(params, bias, queue.stream()); !status.ok()) {
      return status;
    }
  }
  return (*plans)->Run({.x = params.x,
                        .x_stride = params.x_stride,
                        .weight = weight.data,
                        .bias = params.bias == nullptr ? nullptr : bias,
                        .out = params.out,
                        .out_stride = params.out_stride,
                        .rows = params.rows,
                        .out_features = weight.out_features,
                        .in_features = weight.in_features,
                        .accumulate = params.accumulate,
                        .wide = params.wide},
                       {scratch, MatmulPlans::kScratchBytes},
                       queue.stream());
}

}  // namespace

size_t PackedMatrixBytes(int64_t out_features, int64_t in_features, DType dtype) {
  return static_cast<size_t>(out_features) * static_cast<size_t>(in_features) * DTypeBytes(dtype);
}

size_t WorkspaceBytes(int, int64_t, int64_t) { return MatmulPlans::kScratchBytes + kBiasBytes; }

// The packed form is the matrix as it is.
absl::Status PackMatrix(const ExecContext& context, const PackMatrixParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckBf16("pack_matrix: dtype", params.dtype); !status.ok()) {
    return status;
  }
  const size_t bytes = PackedMatrixBytes(params.out_features, params.in_features, params.dtype);
  if (bytes == 0) {
    return absl::OkStatus();
  }
  return ToStatus(
      cudaMemcpyAsync(
          params.target, params.source, bytes, cudaMemcpyDeviceToDevice, context.queue->stream()),
      "pack_matrix");
}

absl::Status Matmul(const ExecContext& context, const MatmulParams& params) {
  if (absl::Status status = Check(params);
      !status.ok() || params.rows == 0 || params.weight.out_features == 0) {
    return status;
  }
  return HasFewRows(*context.queue, params)
             ? MatmulFewRows(*context.queue, params)
             : RunMatmulParts<RmsNorm, Multiply, Rope, SiluMul>(params, context);
}

}  // namespace baton::kernels::cuda
