// Host memory in blocks that come from elsewhere than the heap.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/buffer.h"
#include "kernels/core/memory.h"

namespace baton::kernels {

// A space whose Allocate is the subclass's; everything else is as in HostMemory(). Thread-safe.
class HostBlockSpace : public MemorySpace {
 public:
  bool is_host() const override { return true; }
  absl::StatusOr<Memory> Adopt(Buffer source) override;
  absl::Status Upload(std::byte* target, const void* source, size_t bytes) override;
  absl::Status Download(void* target, const void* source, size_t bytes) override;
  absl::Status Copy(std::byte* target, const std::byte* source, size_t bytes) override;
  absl::Status Zero(std::byte* target, size_t bytes) override;
};

}  // namespace baton::kernels
