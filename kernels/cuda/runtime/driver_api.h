// What is needed of CUDA's driver beside its runtime: memory that is mapped apart from being taken.
#pragma once

#include <cuda.h>

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::kernels::cuda {

// Functions of the driver's library (CUDA driver API, "Virtual Memory Management"), which programs
// are not linked with: machines without a device have none.
struct DriverApi {
  // As the runtime finds them, once; kUnimplemented when the driver has not all of them. A device
  // is current. Thread-safe; lives as long as the process.
  static absl::StatusOr<const DriverApi*> Get();

  // OK for CUDA_SUCCESS; kResourceExhausted for memory that is not there, kInternal for the rest.
  absl::Status ToStatus(CUresult result, std::string_view what) const;

  decltype(&cuGetErrorString) error_string = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) memory_create = nullptr;
  decltype(&cuMemRelease) memory_release = nullptr;
  decltype(&cuMemAddressReserve) address_reserve = nullptr;
  decltype(&cuMemAddressFree) address_free = nullptr;
  decltype(&cuMemMap) memory_map = nullptr;
  decltype(&cuMemUnmap) memory_unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;
};

}  // namespace baton::kernels::cuda
