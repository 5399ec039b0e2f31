#include "kernels/cuda/runtime/device_space.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/buffer.h"
#include "kernels/core/memory.h"
#include "kernels/core/op_graphs.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"
#include "kernels/cuda/runtime/pinned_memory.h"

namespace baton::kernels::cuda {
namespace {

class DeviceBlock final : public Memory::Block {
 public:
  explicit DeviceBlock(DeviceMemory memory) : memory_(std::move(memory)) {}

 private:
  const DeviceMemory memory_;
};

Memory Owned(DeviceMemory memory) {
  std::byte* const data = memory.data();
  const size_t size = memory.size();
  return {std::make_unique<DeviceBlock>(std::move(memory)), data, size};
}

const char* CopyName(cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return "copy to the device";
    case cudaMemcpyDeviceToHost:
      return "copy from the device";
    default:
      return "copy inside the device";
  }
}

}  // namespace

absl::StatusOr<Memory> DeviceSpace::Allocate(size_t bytes) {
  absl::StatusOr<DeviceMemory> memory = DeviceMemory::Allocate(bytes);
  if (!memory.ok()) {
    return memory.status();
  }
  return Owned(*std::move(memory));
}

absl::StatusOr<Memory> DeviceSpace::Adopt(Buffer source) {
  absl::StatusOr<DeviceMemory> memory = DeviceMemory::Allocate(source.size());
  if (!memory.ok()) {
    return memory.status();
  }
  if (source.size() > 0) {
    absl::Status status = memory->Upload(source.data(), source.size());
    if (!status.ok()) {
      return status;
    }
  }
  return Owned(*std::move(memory));
}

absl::Status DeviceSpace::Flush() {
  return graphs_ == nullptr ? absl::OkStatus() : graphs_->Flush();
}

absl::Status DeviceSpace::Enqueue(void* target,
                                  const void* source,
                                  size_t bytes,
                                  cudaMemcpyKind kind) {
  if (absl::Status status = Flush(); !status.ok()) {
    return status;
  }
  return ToStatus(cudaMemcpyAsync(target, source, bytes, kind, queue_.stream()), CopyName(kind));
}

absl::Status DeviceSpace::Upload(std::byte* target, const void* source, size_t bytes) {
  return Enqueue(target, source, bytes, cudaMemcpyHostToDevice);
}

absl::Status DeviceSpace::TakeDownloadBuffer() {
  if (downloaded_.data() != nullptr) {
    return absl::OkStatus();
  }
  absl::StatusOr<Memory> buffer = PinnedMemory().Allocate(kDownloadBytes);
  if (!buffer.ok()) {
    return buffer.status();
  }
  downloaded_ = *std::move(buffer);
  return absl::OkStatus();
}

// To pinned memory, since a copy to other memory waits for the stream inside of CUDA, where no call
// of another thread gets through meanwhile: copies of a hand-off would stand still for a whole
// step.
absl::Status DeviceSpace::Download(void* target, const void* source, size_t bytes) {
  absl::Status status = TakeDownloadBuffer();
  for (size_t done = 0; status.ok() && done < bytes; done += kDownloadBytes) {
    const size_t size = std::min(bytes - done, kDownloadBytes);
    const auto* const from = static_cast<const std::byte*>(source) + done;
    status = Enqueue(downloaded_.data(), from, size, cudaMemcpyDeviceToHost);
    // Also behind an error: nothing is written to the buffer any more.
    status.Update(queue_.Wait());
    if (status.ok()) {
      std::memcpy(static_cast<std::byte*>(target) + done, downloaded_.data(), size);
    }
  }
  return status;
}

absl::Status DeviceSpace::Copy(std::byte* target, const std::byte* source, size_t bytes) {
  return Enqueue(target, source, bytes, cudaMemcpyDefault);  // pinned memory may be either end
}

MemorySpace& DeviceSpace::staging() { return PinnedMemory(); }

absl::Status DeviceSpace::Zero(std::byte* target, size_t bytes) {
  if (absl::Status status = Flush(); !status.ok()) {
    return status;
  }
  return ToStatus(cudaMemsetAsync(target, 0, bytes, queue_.stream()), "zero device memory");
}

}  // namespace baton::kernels::cuda
