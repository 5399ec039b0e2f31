// Owned memory of the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::kernels::cuda {

// A move-only block of the current device, aligned to 256 bytes, zeroed. The device may use it
// until it is destroyed, which waits for the device. Not thread-safe.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // kResourceExhausted when the device has no such block.
  static absl::StatusOr<DeviceMemory> Allocate(size_t bytes);

  std::byte* data() const { return block_.get(); }
  size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(block_.get());
  }

  // Copies between host and device; both wait until the bytes are there. `offset` and the count are
  // within the block.
  absl::Status Upload(const void* source, size_t bytes, size_t offset = 0) const;
  absl::Status Download(void* target, size_t bytes, size_t offset = 0) const;

 private:
  struct Free {
    void operator()(std::byte* block) const;
  };

  std::unique_ptr<std::byte[], Free> block_;
  size_t size_ = 0;
};

}  // namespace baton::kernels::cuda
