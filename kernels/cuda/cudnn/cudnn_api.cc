#include "kernels/cuda/cudnn/cudnn_api.h"

#include <cudnn_graph.h>

#include <array>
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

constexpr size_t kMessageBytes = 512;

std::string VersionText(size_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::Status ResolveAll(CudnnApi& api) {
  const DynamicLibrary& library = api.library;
  for (const absl::Status& status :
       {library.Resolve("cudnnGetErrorString", api.error_string),
        library.Resolve("cudnnGetLastErrorString", api.last_error_string),
        library.Resolve("cudnnBackendCreateDescriptor", api.create_descriptor),
        library.Resolve("cudnnBackendDestroyDescriptor", api.destroy_descriptor),
        library.Resolve("cudnnBackendSetAttribute", api.set_attribute),
        library.Resolve("cudnnBackendGetAttribute", api.get_attribute),
        library.Resolve("cudnnBackendFinalize", api.finalize),
        library.Resolve("cudnnBackendExecute", api.execute),
        library.Resolve("cudnnCreate", api.create),
        library.Resolve("cudnnDestroy", api.destroy),
        library.Resolve("cudnnSetStream", api.set_stream)}) {
    if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::StatusCode CodeOf(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_NOT_INITIALIZED ||
      status == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER) {
    return absl::StatusCode::kUnavailable;
  }
  // Codes are grouped by thousands.
  constexpr int kGroup = 1000;
  return status / kGroup == CUDNN_STATUS_NOT_SUPPORTED / kGroup ? absl::StatusCode::kUnimplemented
                                                                : absl::StatusCode::kInternal;
}

}  // namespace

std::string CudnnApi::Description() const {
  return absl::StrCat(VersionText(version), " of ", library.path());
}

absl::Status CudnnApi::ToStatus(cudnnStatus_t status, const char* doing) const {
  if (status == CUDNN_STATUS_SUCCESS) {
    return absl::OkStatus();
  }
  std::array<char, kMessageBytes> message = {};
  last_error_string(message.data(), message.size());
  return {CodeOf(status),
          absl::StrCat("cuDNN: ", doing, ": ", error_string(status), ": ", message.data())};
}

absl::StatusOr<std::shared_ptr<const CudnnApi>> LoadCudnn(const LibrarySearch& search) {
  absl::StatusOr<DynamicLibrary> library =
      DynamicLibrary::Open(LibraryPaths(kCudnnLibrary, search));
  if (!library.ok()) {
    return absl::NotFoundError(absl::StrCat("cuDNN: ", library.status().message()));
  }
  decltype(&cudnnGetVersion) version = nullptr;
  if (absl::Status status = library->Resolve("cudnnGetVersion", version); !status.ok()) {
    return status;
  }
  auto api = std::make_shared<CudnnApi>(CudnnApi{.library = *library, .version = version()});
  if (api->version < kOldestCudnn) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cuDNN: ", api->Description(), " is too old; at least ", VersionText(kOldestCudnn)));
  }
  if (absl::Status status = ResolveAll(*api); !status.ok()) {
    return status;
  }
  return api;
}

}  // namespace baton::kernels::cuda
