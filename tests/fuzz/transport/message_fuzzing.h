// What the fuzzers of messages between transports share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>

#include "tests/support/resealed.h"

namespace baton::transport {

// The first byte, if odd, has the checksum of the rest, which a fuzzer can't guess, made right, so
// that the checks behind it run. What decode(bytes) accepts has one form: encode(message) is the
// bytes that it came from.
template <typename Decode, typename Encode>
void FuzzMessage(const uint8_t* data, size_t size, const Decode& decode, const Encode& encode) {
  constexpr size_t kChecksumBytes = 8;
  if (size == 0) {
    return;
  }
  std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  if ((data[0] & 1) != 0 && bytes.size() >= kChecksumBytes) {
    bytes = Resealed(std::move(bytes));
  }
  const auto message = decode(std::as_bytes(std::span(bytes.data(), bytes.size())));
  if (message.ok() && encode(*message) != bytes) {
    std::abort();
  }
}

}  // namespace baton::transport
