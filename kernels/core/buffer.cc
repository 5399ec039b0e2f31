#include "kernels/core/buffer.h"

#include <cstring>

namespace baton::kernels {

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) {
    return;
  }
  // aligned_alloc wants a multiple of the alignment.
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded < bytes) {
    throw std::bad_alloc();
  }
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  std::memset(memory, 0, rounded);
  data_.reset(memory);
}

}  // namespace baton::kernels
