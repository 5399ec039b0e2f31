#include "tests/gpu/bench/model_kv_budget.h"

#include <cuda_runtime_api.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace baton::model {

absl::StatusOr<size_t> KvBudget(double share) {
  size_t unused = 0;
  size_t all = 0;
  BATON_RETURN_IF_ERROR(
      kernels::cuda::ToStatus(cudaMemGetInfo(&unused, &all), "memory of the device"));
  const auto kept = static_cast<size_t>((1.0 - share) * static_cast<double>(all));
  if (unused <= kept) {
    return absl::ResourceExhaustedError(
        absl::StrCat(unused, " bytes of the device are free and ", kept, " are to stay so"));
  }
  return unused - kept;
}

}  // namespace baton::model
