// Messages between transports (common/transport/message_bytes.h) that were changed.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace baton::transport {

// `bytes`, at least 8, with the checksum that belongs to what is before it.
inline std::string Resealed(std::string bytes) {
  constexpr size_t kChecksumBytes = 8;
  const size_t sealed = bytes.size() - kChecksumBytes;
  const uint64_t checksum = XXH3_64bits(bytes.data(), sealed);
  for (size_t i = 0; i < kChecksumBytes; ++i) {
    bytes[sealed + i] = static_cast<char>(checksum >> (8 * i) & 0xff);
  }
  return bytes;
}

}  // namespace baton::transport
