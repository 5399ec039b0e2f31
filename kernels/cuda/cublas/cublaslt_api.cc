#include "kernels/cuda/cublas/cublaslt_api.h"

#include <cublasLt.h>
#include <cublas_api.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/cuda/libraries/dynamic_library.h"
#include "kernels/cuda/libraries/library_paths.h"

namespace baton::kernels::cuda {
namespace {

std::string VersionText(size_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::Status ResolveAll(CublasLtApi& api) {
  const DynamicLibrary& library = api.library;
  for (const absl::Status& status :
       {library.Resolve("cublasLtGetStatusName", api.status_name),
        library.Resolve("cublasLtGetStatusString", api.status_string),
        library.Resolve("cublasLtCreate", api.create),
        library.Resolve("cublasLtDestroy", api.destroy),
        library.Resolve("cublasLtMatmulDescCreate", api.operation_create),
        library.Resolve("cublasLtMatmulDescDestroy", api.operation_destroy),
        library.Resolve("cublasLtMatmulDescSetAttribute", api.operation_set),
        library.Resolve("cublasLtMatrixLayoutCreate", api.layout_create),
        library.Resolve("cublasLtMatrixLayoutDestroy", api.layout_destroy),
        library.Resolve("cublasLtMatrixLayoutSetAttribute", api.layout_set),
        library.Resolve("cublasLtMatmulPreferenceCreate", api.preference_create),
        library.Resolve("cublasLtMatmulPreferenceDestroy", api.preference_destroy),
        library.Resolve("cublasLtMatmulPreferenceSetAttribute", api.preference_set),
        library.Resolve("cublasLtMatmulAlgoGetHeuristic", api.heuristic),
        library.Resolve("cublasLtMatmul", api.matmul)}) {
    if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::StatusCode CodeOf(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return absl::StatusCode::kUnavailable;
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::StatusCode::kResourceExhausted;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return absl::StatusCode::kUnimplemented;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

std::string CublasLtApi::Description() const {
  return absl::StrCat(VersionText(version), " of ", library.path());
}

absl::Status CublasLtApi::ToStatus(cublasStatus_t status, const char* doing) const {
  if (status == CUBLAS_STATUS_SUCCESS) {
    return absl::OkStatus();
  }
  return {
      CodeOf(status),
      absl::StrCat("cuBLASLt: ", doing, ": ", status_name(status), ": ", status_string(status))};
}

absl::StatusOr<std::shared_ptr<const CublasLtApi>> LoadCublasLt(const LibrarySearch& search) {
  absl::StatusOr<DynamicLibrary> library =
      DynamicLibrary::Open(LibraryPaths(kCublasLtLibrary, search));
  if (!library.ok()) {
    return absl::NotFoundError(absl::StrCat("cuBLASLt: ", library.status().message()));
  }
  decltype(&cublasLtGetVersion) version = nullptr;
  if (absl::Status status = library->Resolve("cublasLtGetVersion", version); !status.ok()) {
    return status;
  }
  auto api = std::make_shared<CublasLtApi>(CublasLtApi{.library = *library, .version = version()});
  if (api->version < kOldestCublasLt) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cuBLASLt: ", api->Description(), " is too old; at least ", VersionText(kOldestCublasLt)));
  }
  if (absl::Status status = ResolveAll(*api); !status.ok()) {
    return status;
  }
  return api;
}

}  // namespace baton::kernels::cuda
