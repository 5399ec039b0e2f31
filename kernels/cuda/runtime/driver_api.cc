#include "kernels/cuda/runtime/driver_api.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace baton::kernels::cuda {
namespace {

// The oldest driver that a build with the toolkit 13 runs on; all of these are older.
constexpr unsigned kVersion = 13000;

template <typename Function>
absl::Status Find(const char* name, Function& function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || address == nullptr) {
    return absl::UnimplementedError(absl::StrCat("the CUDA driver has no ", name));
  }
  function = reinterpret_cast<Function>(address);
  return absl::OkStatus();
}

absl::StatusOr<const DriverApi*> Load() {
  static DriverApi api;
  absl::Status status = Find("cuGetErrorString", api.error_string);
  status.Update(Find("cuMemGetAllocationGranularity", api.granularity));
  status.Update(Find("cuMemCreate", api.memory_create));
  status.Update(Find("cuMemRelease", api.memory_release));
  status.Update(Find("cuMemAddressReserve", api.address_reserve));
  status.Update(Find("cuMemAddressFree", api.address_free));
  status.Update(Find("cuMemMap", api.memory_map));
  status.Update(Find("cuMemUnmap", api.memory_unmap));
  status.Update(Find("cuMemSetAccess", api.set_access));
  status.Update(Find("cuMemExportToShareableHandle", api.export_handle));
  status.Update(Find("cuMemImportFromShareableHandle", api.import_handle));
  if (!status.ok()) {
    return status;
  }
  return &api;
}

}  // namespace

absl::StatusOr<const DriverApi*> DriverApi::Get() {
  static const absl::StatusOr<const DriverApi*> kApi = Load();
  return kApi;
}

absl::Status DriverApi::ToStatus(CUresult result, std::string_view what) const {
  if (result == CUDA_SUCCESS) {
    return absl::OkStatus();
  }
  const char* text = nullptr;
  error_string(result, &text);
  const std::string message = absl::StrCat(std::string(what),
                                           ": ",
                                           text == nullptr ? "unknown" : text,
                                           " (",
                                           static_cast<int>(result),
                                           ")");
  return result == CUDA_ERROR_OUT_OF_MEMORY ? absl::ResourceExhaustedError(message)
                                            : absl::InternalError(message);
}

}  // namespace baton::kernels::cuda
