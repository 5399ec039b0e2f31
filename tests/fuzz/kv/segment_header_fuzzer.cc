// Any bytes as a segment header. The header's own checksum would stop almost every mutation, so the
// input is also tried with the checksum made right. What decodes must encode to the same bytes.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "common/base/xxh3.h"
#include "common/kv/manifest/segment_header.h"

namespace {

using baton::kv::SegmentHeader;

void Decode(std::span<const std::byte> bytes) {
  const auto header = baton::kv::DecodeSegmentHeader(bytes);
  if (!header.ok()) {
    return;
  }
  const auto encoded = baton::kv::EncodeSegmentHeader(*header);
  if (!std::equal(encoded.begin(), encoded.end(), bytes.begin(), bytes.end())) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Decode(std::as_bytes(std::span(data, size)));
  if (size == SegmentHeader::kBytes) {
    const auto input = std::as_bytes(std::span(data, size));
    std::vector<std::byte> bytes(input.begin(), input.end());
    const uint64_t checksum = baton::Xxh3(std::span(bytes).first(SegmentHeader::kBytes - 8));
    for (size_t i = 0; i < 8; ++i) {
      bytes[SegmentHeader::kBytes - 8 + i] = static_cast<std::byte>((checksum >> (8 * i)) & 0xff);
    }
    Decode(bytes);
  }
  return 0;
}
