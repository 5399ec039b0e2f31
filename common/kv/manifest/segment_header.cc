#include "common/kv/manifest/segment_header.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/base/xxh3.h"

namespace baton::kv {
namespace {

constexpr size_t kChecksumOffset = SegmentHeader::kBytes - sizeof(uint64_t);

// Writes integers little-endian, one after the other.
class Writer {
 public:
  explicit Writer(std::span<std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  void Put(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) {
      bytes_[position_++] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
    }
  }

 private:
  std::span<std::byte> bytes_;
  size_t position_ = 0;
};

// Reads what Writer wrote; the caller has checked the size.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T Get() {
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<uint64_t>(bytes_[position_++]) << (8 * i);
    }
    return static_cast<T>(value);
  }
  template <typename T>
  void Into(T& field) {
    field = Get<T>();
  }
  std::span<const std::byte> rest() const { return bytes_.subspan(position_); }

 private:
  std::span<const std::byte> bytes_;
  size_t position_ = 0;
};

// Size, magic, version and checksum, in the order in which they can be judged: a header of another
// version may have another size.
absl::Status CheckFrame(std::span<const std::byte> bytes) {
  if (bytes.size() < 8) {
    return absl::DataLossError(
        absl::StrCat("segment header truncated to ", bytes.size(), " bytes"));
  }
  Reader reader(bytes);
  if (const auto magic = reader.Get<uint32_t>(); magic != SegmentHeader::kMagic) {
    return absl::DataLossError(
        absl::StrCat("not a segment header: its magic is ", absl::Hex(magic, absl::kZeroPad8)));
  }
  if (const auto version = reader.Get<uint16_t>(); version != SegmentHeader::kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("segment header version ",
                                                      version,
                                                      "; this worker knows version ",
                                                      SegmentHeader::kVersion));
  }
  const auto header_bytes = reader.Get<uint16_t>();
  if (bytes.size() != SegmentHeader::kBytes || header_bytes != SegmentHeader::kBytes) {
    return absl::DataLossError(absl::StrCat("a segment header of ",
                                            bytes.size(),
                                            " bytes that says ",
                                            header_bytes,
                                            "; version 2 has ",
                                            SegmentHeader::kBytes));
  }
  const uint64_t checksum = Reader(bytes.subspan(kChecksumOffset)).Get<uint64_t>();
  if (checksum != Xxh3(bytes.first(kChecksumOffset))) {
    return absl::DataLossError("segment header: its checksum does not match");
  }
  return absl::OkStatus();
}

absl::Status CheckHeads(const SegmentHeader& header) {
  const uint32_t end = uint32_t{header.head_begin} + header.head_count;
  if (header.head_count == 0 || end > header.head_total) {
    return absl::InvalidArgumentError(absl::StrCat(
        "segment header: KV heads ", header.head_begin, "..", end, " of ", header.head_total));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<WireFormat> WireFormatNamed(std::string_view format) {
  constexpr std::array<std::pair<std::string_view, WireFormat>, 4> kNames = {
      {{"dense", WireFormat::kDense},
       {"fp8", WireFormat::kFp8},
       {"diffkv", WireFormat::kDiffKv},
       {"shadowkv", WireFormat::kShadowKv}}};
  const auto* found = std::find_if(
      kNames.begin(), kNames.end(), [&](const auto& entry) { return entry.first == format; });
  return found == kNames.end() ? std::nullopt : std::optional(found->second);
}

std::array<std::byte, SegmentHeader::kBytes> EncodeSegmentHeader(const SegmentHeader& header) {
  std::array<std::byte, SegmentHeader::kBytes> bytes{};
  Writer writer(bytes);
  writer.Put(SegmentHeader::kMagic);
  writer.Put(SegmentHeader::kVersion);
  writer.Put(static_cast<uint16_t>(SegmentHeader::kBytes));
  writer.Put(header.reservation_id);
  writer.Put(header.epoch);
  writer.Put(header.attempt);
  writer.Put(header.segment_index);
  writer.Put(header.layer_begin);
  writer.Put(header.layer_count);
  writer.Put(header.head_begin);
  writer.Put(header.head_count);
  writer.Put(header.page_begin);
  writer.Put(header.page_count);
  writer.Put(static_cast<uint16_t>(header.format));
  writer.Put(header.format_version);
  writer.Put(static_cast<uint16_t>(header.checksum_type));
  writer.Put(header.head_total);
  writer.Put(header.payload_bytes);
  writer.Put(header.checksum);
  Writer(std::span(bytes).subspan(kChecksumOffset))
      .Put(Xxh3(std::span<const std::byte>(bytes).first(kChecksumOffset)));
  return bytes;
}

absl::StatusOr<SegmentHeader> DecodeSegmentHeader(std::span<const std::byte> bytes) {
  BATON_RETURN_IF_ERROR(CheckFrame(bytes));
  Reader reader(bytes.first(kChecksumOffset));
  reader.Get<uint64_t>();  // magic, version and size were checked
  SegmentHeader header;
  reader.Into(header.reservation_id);
  reader.Into(header.epoch);
  reader.Into(header.attempt);
  reader.Into(header.segment_index);
  reader.Into(header.layer_begin);
  reader.Into(header.layer_count);
  reader.Into(header.head_begin);
  reader.Into(header.head_count);
  reader.Into(header.page_begin);
  reader.Into(header.page_count);
  const auto format = reader.Get<uint16_t>();
  reader.Into(header.format_version);
  const auto checksum_type = reader.Get<uint16_t>();
  reader.Into(header.head_total);
  reader.Into(header.payload_bytes);
  reader.Into(header.checksum);
  if (format < static_cast<uint16_t>(WireFormat::kDense) ||
      format > static_cast<uint16_t>(WireFormat::kShadowKv)) {
    return absl::FailedPreconditionError(
        absl::StrCat("segment header: KV format ", format, " is unknown here"));
  }
  header.format = static_cast<WireFormat>(format);
  header.checksum_type = static_cast<ChecksumType>(checksum_type);
  if (checksum_type < static_cast<uint16_t>(ChecksumType::kXxh3) ||
      checksum_type > static_cast<uint16_t>(ChecksumType::kWordSum)) {
    return absl::FailedPreconditionError(
        absl::StrCat("segment header: checksum type ", checksum_type, " is unknown here"));
  }
  BATON_RETURN_IF_ERROR(CheckHeads(header));
  const std::span<const std::byte> padding = reader.rest();
  if (std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; })) {
    return absl::DataLossError("segment header: its padding is not zero");
  }
  return header;
}

}  // namespace baton::kv
