#include "common/kv/manifest/digest.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/xxh3.h"

namespace baton::kv {

uint64_t DigestOfCommit(std::span<const uint64_t> checksums, std::string_view commit) {
  Xxh3Stream stream;
  for (const uint64_t checksum : checksums) {
    std::array<std::byte, sizeof(checksum)> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>((checksum >> (8 * i)) & 0xff);
    }
    stream.Update(bytes);
  }
  stream.Update(std::as_bytes(std::span(commit)));
  return stream.value();
}

}  // namespace baton::kv
