#include "tests/gpu/bench/device_arena.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <utility>

#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace baton::kernels::cuda {

std::byte* DeviceArena::AllocateBytes(size_t bytes) {
  if (!status_.ok()) {
    return nullptr;
  }
  absl::StatusOr<DeviceMemory> block = DeviceMemory::Allocate(bytes);
  if (!block.ok()) {
    status_ = block.status();
    return nullptr;
  }
  return blocks_.emplace_back(*std::move(block)).data();
}

std::byte* DeviceArena::UploadBytes(const void* source, size_t bytes) {
  std::byte* data = AllocateBytes(bytes);
  if (data != nullptr) {
    status_ = blocks_.back().Upload(source, bytes);
  }
  return data;
}

absl::Status CopyToHost(void* target, const void* source, size_t bytes) {
  if (bytes == 0) {
    return absl::OkStatus();
  }
  return ToStatus(cudaMemcpy(target, source, bytes, cudaMemcpyDeviceToHost),
                  "copy from the device");
}

}  // namespace baton::kernels::cuda
