#include "kernels/core/host_blocks.h"

#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/buffer.h"
#include "kernels/core/memory.h"

namespace baton::kernels {

absl::StatusOr<Memory> HostBlockSpace::Adopt(Buffer source) {
  absl::StatusOr<Memory> memory = Allocate(source.size());
  if (memory.ok() && source.size() > 0) {
    std::memcpy(memory->data(), source.data(), source.size());
  }
  return memory;
}

absl::Status HostBlockSpace::Upload(std::byte* target, const void* source, size_t bytes) {
  return HostMemory().Upload(target, source, bytes);
}

absl::Status HostBlockSpace::Download(void* target, const void* source, size_t bytes) {
  return HostMemory().Download(target, source, bytes);
}

absl::Status HostBlockSpace::Copy(std::byte* target, const std::byte* source, size_t bytes) {
  return HostMemory().Copy(target, source, bytes);
}

absl::Status HostBlockSpace::Zero(std::byte* target, size_t bytes) {
  return HostMemory().Zero(target, bytes);
}

}  // namespace baton::kernels
