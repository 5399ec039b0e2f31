#include "tests/gpu/bench/model_kv_budget.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>

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

absl::StatusOr<size_t> HostKvBudget(double share) {
  size_t available = 0;  // KiB
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    std::istringstream fields(line);
    std::string name;
    if (fields >> name; name == "MemAvailable:") {
      fields >> available;
    }
  }
  if (available == 0) {
    return absl::InternalError("/proc/meminfo does not say how much memory is available");
  }
  size_t bytes = available << 10;
  size_t limit = 0;  // "max" is none
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) {
    bytes = std::min(bytes, limit);
  }
  return static_cast<size_t>(share * static_cast<double>(bytes));
}

}  // namespace baton::model
