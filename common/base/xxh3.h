// Checksums of what is shipped: XXH3 with 64 bits, seed 0 (xxHash library).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace baton {

// xxh3-64 of a contiguous range.
uint64_t Xxh3(std::span<const std::byte> bytes);

// xxh3-64 of bytes given piece by piece, such as the pages of a segment. Not thread-safe.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(const Xxh3Stream&) = delete;
  Xxh3Stream& operator=(const Xxh3Stream&) = delete;

  void Update(std::span<const std::byte> bytes);
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baton
