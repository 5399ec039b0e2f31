// Owned, aligned host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

namespace baton::kernels {

// A move-only block of zeroed memory, aligned to 64 bytes (one cache line, one AVX-512 register). A
// large block takes memory of the machine only where it is written.
// Not thread-safe; the owner decides who may touch the bytes.
class Buffer {
 public:
  static constexpr size_t kAlignment = 64;

  Buffer() = default;
  // Throws std::bad_alloc when there is no such block.
  explicit Buffer(size_t bytes);

  std::byte* data() { return Aligned(); }
  const std::byte* data() const { return Aligned(); }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() { return {Aligned(), size_}; }
  std::span<const std::byte> bytes() const { return {Aligned(), size_}; }

  // The memory seen as elements of T.
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(Aligned());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(Aligned());
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::byte* Aligned() const {
    void* aligned = block_.get();
    size_t space = size_ + kAlignment - 1;
    return static_cast<std::byte*>(std::align(kAlignment, size_, aligned, space));
  }

  std::unique_ptr<std::byte[], Free> block_;  // kAlignment - 1 bytes more than asked for
  size_t size_ = 0;
};

}  // namespace baton::kernels
