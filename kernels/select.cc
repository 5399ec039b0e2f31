#include "kernels/select.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace baton::kernels {
namespace {

absl::StatusOr<const OpTable*> Complete(const OpTable& table) {
  if (absl::Status status = CheckComplete(table); !status.ok()) {
    return status;
  }
  return &table;
}

}  // namespace

absl::StatusOr<const OpTable*> SelectOps(std::string_view device) {
  if (device == "reference") {
    return Complete(ReferenceOps());
  }
  if (device == "cpu") {
    return Complete(CpuOps());
  }
  if (device == "cuda") {
    if (const OpTable* table = CudaOps(); table != nullptr) {
      return Complete(*table);
    }
    return absl::FailedPreconditionError(
        "device cuda: this build has no CUDA back end or the machine has no CUDA device; use cpu "
        "or "
        "reference");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("device \"", std::string(device), "\" is unknown; use cpu, cuda or reference"));
}

}  // namespace baton::kernels
