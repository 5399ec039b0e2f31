#include "kernels/cuda/runtime/device_memory.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <string_view>

#include "absl/strings/str_cat.h"

#include "kernels/cuda/runtime/cuda_status.h"

namespace baton::kernels::cuda {

namespace {

// Streams of this back end do not wait for the default one, on which memory is set and copied.
absl::Status Finish(cudaError_t started, std::string_view what) {
  return ToStatus(started == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : started, what);
}

}  // namespace

void DeviceMemory::Free::operator()(std::byte* block) const { cudaFree(block); }

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(size_t bytes) {
  DeviceMemory memory;
  if (bytes == 0) {
    return memory;
  }
  void* block = nullptr;
  absl::Status status =
      ToStatus(cudaMalloc(&block, bytes), absl::StrCat("allocate ", bytes, " bytes of the device"));
  if (!status.ok()) {
    return status;
  }
  memory.block_.reset(static_cast<std::byte*>(block));
  memory.size_ = bytes;
  status = Finish(cudaMemset(block, 0, bytes), "zero device memory");
  if (!status.ok()) {
    return status;
  }
  return memory;
}

absl::Status DeviceMemory::Upload(const void* source, size_t bytes, size_t offset) const {
  return Finish(cudaMemcpy(data() + offset, source, bytes, cudaMemcpyHostToDevice),
                "copy to the device");
}

absl::Status DeviceMemory::Download(void* target, size_t bytes, size_t offset) const {
  return Finish(cudaMemcpy(target, data() + offset, bytes, cudaMemcpyDeviceToHost),
                "copy from the device");
}

}  // namespace baton::kernels::cuda
