#include "kernels/cuda/cublas/matmul_plan.h"

#include <cublasLt.h>
#include <cublas_api.h>
#include <driver_types.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/cuda/cublas/cublaslt_api.h"

namespace baton::kernels::cuda {
namespace {

using Preference =
    std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype(&cublasLtMatmulPreferenceDestroy)>;

// The most that a kernel asks of an address.
constexpr uint32_t kMostAlignment = 16;

uint32_t AlignmentOf(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | kMostAlignment;
  return static_cast<uint32_t>(bits & (~bits + 1));  // the lowest bit that is set
}

absl::Status FirstError(std::initializer_list<absl::Status> statuses) {
  for (const absl::Status& status : statuses) {
    if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status SetOperation(const CublasLtApi& api,
                          cublasLtMatmulDesc_t operation,
                          cublasLtMatmulDescAttributes_t name,
                          T value) {
  return api.ToStatus(
      api.operation_set(operation, name, static_cast<const void*>(&value), sizeof(value)),
      "describe a product");
}

template <typename T>
absl::Status Prefer(const CublasLtApi& api,
                    cublasLtMatmulPreference_t preference,
                    cublasLtMatmulPreferenceAttributes_t name,
                    T value) {
  return api.ToStatus(api.preference_set(preference, name, &value, sizeof(value)),
                      "say what kernel is wanted");
}

// Column-major matrices, the next one's columns behind those of the one before.
struct Matrices {
  cudaDataType type;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
  int64_t count = 1;
};

// Sets `layout` to them.
template <typename Layout>
absl::Status MakeLayout(const CublasLtApi& api, const Matrices& matrices, Layout& layout) {
  cublasLtMatrixLayout_t made = nullptr;
  absl::Status status = api.ToStatus(api.layout_create(&made,
                                                       matrices.type,
                                                       static_cast<uint64_t>(matrices.rows),
                                                       static_cast<uint64_t>(matrices.columns),
                                                       matrices.stride),
                                     "describe a matrix");
  layout.reset(made);
  if (!status.ok() || matrices.count == 1) {
    return status;
  }
  const auto set = [&](cublasLtMatrixLayoutAttribute_t name, auto value) {
    return api.ToStatus(api.layout_set(made, name, &value, sizeof(value)), "describe matrices");
  };
  return FirstError(
      {set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(matrices.count)),
       set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, matrices.columns * matrices.stride)});
}

absl::Status SetPreferences(const CublasLtApi& api,
                            const MatmulShape& shape,
                            cublasLtMatmulPreference_t preference) {
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
    return Prefer(api, preference, name, value);
  };
  return FirstError(
      {prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{shape.scratch_bytes}),
       // A sum whose parts are computed in parallel is put together in fp32: the
       // other schemes round every part to the type of the result.
       prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
              static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)),
       prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.weight_alignment),
       prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.x_alignment),
       prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.out_alignment),
       prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.out_alignment)});
}

}  // namespace

MatmulShape MatmulShape::Of(const MatmulCall& call, size_t scratch_bytes) {
  return {.rows = call.rows,
          .out_features = call.out_features,
          .in_features = call.in_features,
          .x_stride = call.x_stride,
          .out_stride = call.out_stride,
          .x_alignment = AlignmentOf(call.x),
          .weight_alignment = AlignmentOf(call.weight),
          .out_alignment = AlignmentOf(call.out),
          .bias = call.bias != nullptr,
          .wide = call.wide,
          .by_feature = call.by_feature,
          .products = call.products,
          .scratch_bytes = scratch_bytes};
}

std::string MatmulShape::ToString() const {
  return absl::StrCat(rows,
                      " rows, ",
                      in_features,
                      " to ",
                      out_features,
                      " features, x_stride ",
                      x_stride,
                      ", out_stride ",
                      out_stride,
                      ", x, weight and out aligned to ",
                      x_alignment,
                      ", ",
                      weight_alignment,
                      " and ",
                      out_alignment,
                      bias ? ", bias" : "",
                      wide ? ", wide" : "",
                      by_feature ? ", by feature" : "",
                      products > 1 ? absl::StrCat(", ", products, " products") : "");
}

MatmulPlan::MatmulPlan(const CublasLtApi& api)
    : operation_(nullptr, api.operation_destroy),
      weight_(nullptr, api.layout_destroy),
      x_(nullptr, api.layout_destroy),
      out_(nullptr, api.layout_destroy) {}

absl::StatusOr<MatmulPlan> MatmulPlan::Make(const CublasLtApi& api,
                                            cublasLtHandle_t handle,
                                            const MatmulCall& call,
                                            size_t scratch_bytes) {
  MatmulPlan plan(api);
  if (absl::Status status = plan.Describe(api, call); !status.ok()) {
    return status;
  }
  if (absl::Status status = plan.ChooseKernel(api, handle, MatmulShape::Of(call, scratch_bytes));
      !status.ok()) {
    return status;
  }
  return plan;
}

absl::Status MatmulPlan::Describe(const CublasLtApi& api, const MatmulCall& call) {
  cublasLtMatmulDesc_t operation = nullptr;
  absl::Status status =
      api.ToStatus(api.operation_create(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                   "make the description of a product");
  operation_.reset(operation);
  if (!status.ok()) {
    return status;
  }
  const auto transpose = [&](cublasLtMatmulDescAttributes_t factor) {
    return SetOperation(api, operation, factor, static_cast<int32_t>(CUBLAS_OP_T));
  };
  status = transpose(call.by_feature ? CUBLASLT_MATMUL_DESC_TRANSB : CUBLASLT_MATMUL_DESC_TRANSA);
  if (status.ok() && call.bias != nullptr) {
    status = FirstError({SetOperation(api,
                                      operation,
                                      CUBLASLT_MATMUL_DESC_EPILOGUE,
                                      static_cast<uint32_t>(CUBLASLT_EPILOGUE_BIAS)),
                         SetBias(api, call.bias)});
  }
  if (!status.ok()) {
    return status;
  }
  return FirstError({DescribeFactors(api, call),
                     MakeLayout(api,
                                {.type = call.wide ? CUDA_R_32F : CUDA_R_16BF,
                                 .rows = call.out_features,
                                 .columns = call.rows,
                                 .stride = call.out_stride,
                                 .count = call.products},
                                out_)});
}

absl::Status MatmulPlan::DescribeFactors(const CublasLtApi& api, const MatmulCall& call) {
  const int64_t in = call.in_features;
  const int64_t out = call.out_features;
  Matrices weight = {
      .type = CUDA_R_16BF, .rows = in, .columns = out, .stride = in, .count = call.products};
  Matrices x = {.type = CUDA_R_16BF,
                .rows = in,
                .columns = call.rows,
                .stride = call.x_stride,
                .count = call.products};
  if (call.by_feature) {
    weight.rows = weight.stride = out;
    weight.columns = in;
    x.rows = call.rows;
    x.columns = in;
  }
  return FirstError({MakeLayout(api, weight, weight_), MakeLayout(api, x, x_)});
}

absl::Status MatmulPlan::SetBias(const CublasLtApi& api, const void* bias) {
  return SetOperation(api, operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
}

absl::Status MatmulPlan::ChooseKernel(const CublasLtApi& api,
                                      cublasLtHandle_t handle,
                                      const MatmulShape& shape) {
  cublasLtMatmulPreference_t made = nullptr;
  absl::Status status =
      api.ToStatus(api.preference_create(&made), "make the description of a kernel");
  const Preference preference(made, api.preference_destroy);
  if (status.ok()) {
    status = SetPreferences(api, shape, made);
  }
  if (!status.ok()) {
    return status;
  }
  cublasLtMatmulHeuristicResult_t best = {};
  int found = 0;
  const cublasStatus_t answer = api.heuristic(handle,
                                              operation_.get(),
                                              weight_.get(),
                                              x_.get(),
                                              out_.get(),
                                              out_.get(),
                                              made,
                                              1,
                                              &best,
                                              &found);
  if (answer == CUBLAS_STATUS_NOT_SUPPORTED ||
      (answer == CUBLAS_STATUS_SUCCESS && (found == 0 || best.state != CUBLAS_STATUS_SUCCESS))) {
    return absl::UnimplementedError(
        absl::StrCat("matmul: cuBLASLt has no kernel for ", shape.ToString()));
  }
  kernel_ = best.algo;
  return api.ToStatus(answer, "choose a kernel");
}

absl::Status MatmulPlan::Run(const CublasLtApi& api,
                             cublasLtHandle_t handle,
                             const MatmulCall& call,
                             std::span<std::byte> scratch,
                             cudaStream_t stream) {
  if (call.bias != nullptr) {
    if (absl::Status status = SetBias(api, call.bias); !status.ok()) {
      return status;
    }
  }
  const float one = 1.0f;
  const float kept = call.accumulate ? 1.0f : 0.0f;  // share of what `out` holds; not read for zero
  return api.ToStatus(api.matmul(handle,
                                 operation_.get(),
                                 &one,
                                 call.weight,
                                 weight_.get(),
                                 call.x,
                                 x_.get(),
                                 &kept,
                                 call.out,
                                 out_.get(),
                                 call.out,
                                 out_.get(),
                                 &kernel_,
                                 scratch.data(),
                                 scratch.size(),
                                 stream),
                      "multiply matrices");
}

}  // namespace baton::kernels::cuda
