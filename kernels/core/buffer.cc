#include "kernels/core/buffer.h"

#include <cstring>

namespace baton::kernels {

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) {
    return;
  }
  if (bytes > SIZE_MAX - kAlignment) {
    throw std::bad_alloc();
  }
  block_.reset(static_cast<std::byte*>(std::calloc(bytes + kAlignment - 1, 1)));
  if (block_ == nullptr) {
    throw std::bad_alloc();
  }
}

}  // namespace baton::kernels
