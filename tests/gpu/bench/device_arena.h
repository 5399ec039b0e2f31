// Memory of the device for one benchmark.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/runtime/device_memory.h"

namespace baton::kernels::cuda {

// Blocks that live as long as the arena. The first failure stays in status(), and what is asked for
// after it is null.
class DeviceArena {
 public:
  // Zeroed.
  template <typename T>
  T* Allocate(int64_t count) {
    return reinterpret_cast<T*>(AllocateBytes(static_cast<size_t>(count) * sizeof(T)));
  }
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    return reinterpret_cast<T*>(UploadBytes(values.data(), values.size() * sizeof(T)));
  }
  const absl::Status& status() const { return status_; }

 private:
  std::byte* AllocateBytes(size_t bytes);
  std::byte* UploadBytes(const void* source, size_t bytes);

  std::vector<DeviceMemory> blocks_;
  absl::Status status_;
};

// Copies from the device; waits for the copy, not for a queue.
absl::Status CopyToHost(void* target, const void* source, size_t bytes);

template <typename T>
absl::StatusOr<std::vector<T>> Downloaded(const T* source, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  absl::Status status = CopyToHost(values.data(), source, values.size() * sizeof(T));
  if (!status.ok()) {
    return status;
  }
  return values;
}

}  // namespace baton::kernels::cuda
