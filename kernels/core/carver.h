// Splits a block of scratch memory into arrays.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::kernels {

// Hands out consecutive 64-byte aligned arrays; with a null base it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <typename T>
  T* Take(int64_t count) {
    std::byte* start = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(start);
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

}  // namespace baton::kernels
