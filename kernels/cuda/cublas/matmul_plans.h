// Matrix products by cuBLASLt, each shape described once.
#pragma once

#include <cublasLt.h>
#include <driver_types.h>

#include <cstddef>
#include <memory>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/cublas/cublaslt_api.h"
#include "kernels/cuda/cublas/matmul_plan.h"
#include "kernels/cuda/libraries/library_paths.h"

namespace baton::kernels::cuda {

// Owns cuBLASLt's handle on the current device and a plan for every shape that was asked for. A
// step of an unseen number of rows costs one plan per layer shape, a step of a known one none. Not
// thread-safe.
class MatmulPlans {
 public:
  // What cuBLASLt is given on Hopper to add up in.
  static constexpr size_t kScratchBytes = size_t{32} << 20;
  // As many shapes are remembered, in about a kilobyte of the host each; then all are forgotten.
  static constexpr size_t kMostPlans = 4096;

  // kNotFound or kFailedPrecondition without a library (LoadCublasLt), kUnavailable without a
  // device.
  static absl::StatusOr<std::unique_ptr<MatmulPlans>> Create(const LibrarySearch& search);

  // Puts the call on the stream. `scratch`, kScratchBytes or less, aligned to 256 bytes, belongs to
  // the call until it is done. kUnimplemented, naming the shape, where cuBLASLt has no kernel.
  absl::Status Run(const MatmulCall& call, std::span<std::byte> scratch, cudaStream_t stream);

  // As CublasLtApi::Description.
  const CublasLtApi& api() const { return *api_; }

 private:
  using Handle = std::unique_ptr<cublasLtContext, decltype(&cublasLtDestroy)>;

  MatmulPlans(std::shared_ptr<const CublasLtApi> api, cublasLtHandle_t handle);
  // The plan of the call's shape; valid until the next call.
  absl::StatusOr<MatmulPlan*> PlanOf(const MatmulCall& call, size_t scratch_bytes);

  std::shared_ptr<const CublasLtApi> api_;
  Handle handle_;
  absl::flat_hash_map<MatmulShape, MatmulPlan> plans_;
};

}  // namespace baton::kernels::cuda
