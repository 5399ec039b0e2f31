// Stands in for the CUDA back end in a build without CUDA.
#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_session.h"
#include "kernels/ops/op_table.h"

namespace baton::kernels {

const OpTable* CudaOps() { return nullptr; }

namespace cuda {

absl::StatusOr<std::unique_ptr<Session>> OpenSession(const SessionSizes& /*sizes*/) {
  return absl::FailedPreconditionError("this build has no CUDA back end");
}

}  // namespace cuda
}  // namespace baton::kernels
