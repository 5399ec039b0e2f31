#include "kernels/cuda/nccl/nccl_api.h"

#include <nccl.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/cuda/libraries/dynamic_library.h"
#include "kernels/cuda/libraries/library_paths.h"

namespace baton::kernels::cuda {
namespace {

// Since 2.9; no older one gets as far as being named.
std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::Status ResolveAll(NcclApi& api) {
  const DynamicLibrary& library = api.library;
  absl::Status status = library.Resolve("ncclGetErrorString", api.error_string);
  status.Update(library.Resolve("ncclGetLastError", api.last_error));
  status.Update(library.Resolve("ncclGetUniqueId", api.unique_id));
  status.Update(library.Resolve("ncclCommInitRankConfig", api.init_rank));
  status.Update(library.Resolve("ncclCommGetAsyncError", api.async_error));
  status.Update(library.Resolve("ncclCommAbort", api.abort));
  status.Update(library.Resolve("ncclMemAlloc", api.allocate));
  status.Update(library.Resolve("ncclMemFree", api.free));
  status.Update(library.Resolve("ncclSend", api.send));
  status.Update(library.Resolve("ncclRecv", api.receive));
  return status;
}

// What no service needs: the functions stay null in a library without them.
void ResolveOptional(NcclApi& api) {
  api.library.Resolve("ncclCommRegister", api.register_buffer).IgnoreError();
  api.library.Resolve("ncclCommDeregister", api.deregister_buffer).IgnoreError();
}

absl::StatusCode CodeOf(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
    case ncclSystemError:
      return absl::StatusCode::kUnavailable;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

std::string NcclApi::Description() const {
  return absl::StrCat(VersionText(version), " of ", library.path());
}

absl::Status NcclApi::CanRegister() const {
  if (register_buffer == nullptr || deregister_buffer == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("NCCL ", Description(), " lacks ncclCommRegister or ncclCommDeregister"));
  }
  return absl::OkStatus();
}

absl::Status NcclApi::ToStatus(ncclResult_t result, std::string_view doing, ncclComm_t comm) const {
  if (result == ncclSuccess || result == ncclInProgress) {
    return absl::OkStatus();
  }
  return {CodeOf(result),
          absl::StrCat(
              "NCCL: ", std::string(doing), ": ", error_string(result), ": ", last_error(comm))};
}

absl::StatusOr<std::shared_ptr<const NcclApi>> LoadNccl(const LibrarySearch& search) {
  absl::StatusOr<DynamicLibrary> library = DynamicLibrary::Open(LibraryPaths(kNcclLibrary, search));
  if (!library.ok()) {
    return absl::NotFoundError(absl::StrCat("NCCL: ", library.status().message()));
  }
  decltype(&ncclGetVersion) get_version = nullptr;
  if (absl::Status status = library->Resolve("ncclGetVersion", get_version); !status.ok()) {
    return status;
  }
  auto api = std::make_shared<NcclApi>(NcclApi{.library = *library});
  get_version(&api->version);
  if (api->version < kOldestNccl) {
    return absl::FailedPreconditionError(absl::StrCat(
        "NCCL: ", api->Description(), " is too old; at least ", VersionText(kOldestNccl)));
  }
  if (absl::Status status = ResolveAll(*api); !status.ok()) {
    return status;
  }
  ResolveOptional(*api);
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  return api;
}

}  // namespace baton::kernels::cuda
