// One matrix product as cuBLASLt describes it, with the kernel that computes it.
#pragma once

#include <cublasLt.h>
#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/cublas/cublaslt_api.h"

namespace baton::kernels::cuda {

// out = x weight^T (+ bias) (+ out when accumulate), added up in fp32 and rounded once. Row-major
// matrices in memory of the device; x and weight are bf16. All sizes are positive.
struct MatmulCall {
  const void* x = nullptr;  // [rows, in_features]
  int64_t x_stride = 0;
  const void* weight = nullptr;  // [out_features, in_features], rows without gaps
  // [out_features], of out's type, or null; aligned to MatmulPlan::kBiasAlignment.
  const void* bias = nullptr;
  void* out = nullptr;  // [rows, out_features], bf16; fp32 when wide
  int64_t out_stride = 0;
  int64_t rows = 0;
  int64_t out_features = 0;
  int64_t in_features = 0;
  bool accumulate = false;
  bool wide = false;
  // Factors lie a row for each feature instead: x is [in_features, rows], x_stride apart, weight
  // [in_features, out_features] without gaps.
  bool by_feature = false;
  // Of so many products at once, whose factors and results lie behind each other without gaps.
  int64_t products = 1;
};

// What of a call decides which kernel computes it.
struct MatmulShape {
  int64_t rows = 0;
  int64_t out_features = 0;
  int64_t in_features = 0;
  int64_t x_stride = 0;
  int64_t out_stride = 0;
  // Bytes that the addresses are multiples of: powers of two up to 16, more is of no use.
  uint32_t x_alignment = 0;
  uint32_t weight_alignment = 0;
  uint32_t out_alignment = 0;
  bool bias = false;
  bool wide = false;
  bool by_feature = false;
  int64_t products = 1;
  size_t scratch_bytes = 0;  // that a kernel may use

  static MatmulShape Of(const MatmulCall& call, size_t scratch_bytes);
  // "17 rows, 4096 to 6144 features, x_stride 4096, ..."; for messages.
  std::string ToString() const;

  friend bool operator==(const MatmulShape&, const MatmulShape&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const MatmulShape& shape) {
    return H::combine(std::move(hash),
                      shape.rows,
                      shape.out_features,
                      shape.in_features,
                      shape.x_stride,
                      shape.out_stride,
                      shape.x_alignment,
                      shape.weight_alignment,
                      shape.out_alignment,
                      shape.bias,
                      shape.wide,
                      shape.by_feature,
                      shape.products,
                      shape.scratch_bytes);
  }
};

// Descriptors and kernel of all calls of one shape. Holds memory of the host alone. Move-only; not
// thread-safe; lives no longer than the API's functions.
class MatmulPlan {
 public:
  static constexpr size_t kBiasAlignment = 256;

  // Asks cuBLASLt's heuristics for a kernel that needs at most `scratch_bytes`, which takes tens of
  // microseconds. kUnimplemented, naming the shape, when there is none.
  static absl::StatusOr<MatmulPlan> Make(const CublasLtApi& api,
                                         cublasLtHandle_t handle,
                                         const MatmulCall& call,
                                         size_t scratch_bytes);

  // Puts a call of the plan's shape on the stream; `scratch` has the bytes that Make was told of.
  absl::Status Run(const CublasLtApi& api,
                   cublasLtHandle_t handle,
                   const MatmulCall& call,
                   std::span<std::byte> scratch,
                   cudaStream_t stream);

 private:
  using Operation =
      std::unique_ptr<cublasLtMatmulDescOpaque_t, decltype(&cublasLtMatmulDescDestroy)>;
  using Layout =
      std::unique_ptr<cublasLtMatrixLayoutOpaque_t, decltype(&cublasLtMatrixLayoutDestroy)>;

  explicit MatmulPlan(const CublasLtApi& api);
  absl::Status Describe(const CublasLtApi& api, const MatmulCall& call);
  absl::Status DescribeFactors(const CublasLtApi& api, const MatmulCall& call);
  absl::Status SetBias(const CublasLtApi& api, const void* bias);
  absl::Status ChooseKernel(const CublasLtApi& api,
                            cublasLtHandle_t handle,
                            const MatmulShape& shape);

  Operation operation_;
  // cuBLASLt's matrices are column-major: what is a row here is a column there, so that it is asked
  // for out^T = weight x^T.
  Layout weight_;  // [in_features, out_features], transposed by the operation; by feature not
  Layout x_;       // [in_features, rows]; by feature [rows, in_features], transposed
  Layout out_;     // [out_features, rows]
  cublasLtMatmulAlgo_t kernel_ = {};
};

}  // namespace baton::kernels::cuda
