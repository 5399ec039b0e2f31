#include "kernels/cuda/cublas/matmul_plans.h"

#include <cublasLt.h>
#include <driver_types.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/cublas/cublaslt_api.h"
#include "kernels/cuda/cublas/matmul_plan.h"
#include "kernels/cuda/libraries/library_paths.h"

namespace baton::kernels::cuda {

absl::StatusOr<std::unique_ptr<MatmulPlans>> MatmulPlans::Create(const LibrarySearch& search) {
  absl::StatusOr<std::shared_ptr<const CublasLtApi>> api = LoadCublasLt(search);
  if (!api.ok()) {
    return api.status();
  }
  cublasLtHandle_t handle = nullptr;
  if (absl::Status status = (*api)->ToStatus((*api)->create(&handle), "make a handle");
      !status.ok()) {
    return status;
  }
  return absl::WrapUnique(new MatmulPlans(*std::move(api), handle));
}

MatmulPlans::MatmulPlans(std::shared_ptr<const CublasLtApi> api, cublasLtHandle_t handle)
    : api_(std::move(api)), handle_(handle, api_->destroy) {}

absl::Status MatmulPlans::Run(const MatmulCall& call,
                              std::span<std::byte> scratch,
                              cudaStream_t stream) {
  const absl::StatusOr<MatmulPlan*> plan = PlanOf(call, scratch.size());
  if (!plan.ok()) {
    return plan.status();
  }
  return (*plan)->Run(*api_, handle_.get(), call, scratch, stream);
}

absl::StatusOr<MatmulPlan*> MatmulPlans::PlanOf(const MatmulCall& call, size_t scratch_bytes) {
  const MatmulShape shape = MatmulShape::Of(call, scratch_bytes);
  if (const auto known = plans_.find(shape); known != plans_.end()) {
    return &known->second;
  }
  absl::StatusOr<MatmulPlan> plan = MatmulPlan::Make(*api_, handle_.get(), call, scratch_bytes);
  if (!plan.ok()) {
    return plan.status();
  }
  if (plans_.size() >= kMostPlans) {
    plans_.clear();
  }
  return &plans_.emplace(shape, *std::move(plan)).first->second;
}

}  // namespace baton::kernels::cuda
