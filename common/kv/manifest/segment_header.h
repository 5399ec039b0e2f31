// The fixed binary header of a KV segment (wire version 2). It travels on the control stream while
// the payload lands in place; every field is little-endian, the struct is never sent as it is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton::kv {

enum class WireFormat : uint16_t { kDense = 1, kFp8 = 2, kDiffKv = 3, kShadowKv = 4 };
// Of the bytes: XXH3, or the sum of kernels/core/word_sum.h, for payloads that lie in a device's
// memory.
enum class ChecksumType : uint16_t { kXxh3 = 1, kWordSum = 2 };

struct SegmentHeader {
  static constexpr uint32_t kMagic = 0x564b5442;  // "BTKV"
  static constexpr uint16_t kVersion = 2;
  static constexpr size_t kBytes = 96;

  uint64_t reservation_id = 0;
  uint64_t epoch = 0;
  uint32_t attempt = 0;
  uint32_t segment_index = 0;  // 0, 1, ... within the attempt
  uint16_t layer_begin = 0;    // sections of the window: stored KV layers, then hidden states
  uint16_t layer_count = 0;
  uint16_t head_begin = 0;  // KV heads of whose bytes in the pages the payload is, of head_total
  uint16_t head_count = 0;
  uint32_t page_begin = 0;  // of each layer's pages in the window
  uint32_t page_count = 0;
  WireFormat format = WireFormat::kDense;
  uint16_t format_version = 1;
  ChecksumType checksum_type = ChecksumType::kXxh3;
  uint16_t head_total = 0;  // KV heads of the model, over all tensor-parallel ranks
  // Layer by layer, pages ascending; of each the whole, or the heads' pieces (head_range.h) in
  // order.
  uint64_t payload_bytes = 0;
  uint64_t checksum = 0;  // of the payload in that order

  bool operator==(const SegmentHeader&) const = default;
};

// The number of a format's name ("dense", ...), or nothing for an unknown one.
std::optional<WireFormat> WireFormatNamed(std::string_view format);

// The name of a segment's transfer in its window: later attempts have other names.
constexpr uint64_t TransferId(uint32_t attempt, uint32_t segment_index) {
  return (uint64_t{attempt} << 32) | segment_index;
}

// Byte layout: magic u32, version u16, header_bytes u16, the fields in order of declaration, zero
// padding, and xxh3-64 of everything before it as the last 8 bytes.
std::array<std::byte, SegmentHeader::kBytes> EncodeSegmentHeader(const SegmentHeader& header);

// kDataLoss: truncated, wrong magic or header checksum; kFailedPrecondition: another version, an
// unknown format or checksum type; kInvalidArgument: no KV heads, or heads outside of head_total.
// Never reads past `bytes`.
absl::StatusOr<SegmentHeader> DecodeSegmentHeader(std::span<const std::byte> bytes);

}  // namespace baton::kv
