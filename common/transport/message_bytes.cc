#include "common/transport/message_bytes.h"

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace baton::transport {
namespace {

constexpr size_t kHeaderBytes = 8;
constexpr size_t kChecksumBytes = 8;

}  // namespace

void ByteWriter::PutText(std::string_view text, size_t most) {
  text = text.substr(0, most);
  Put(static_cast<uint16_t>(text.size()));
  bytes_.append(text);
}

std::string ByteWriter::Seal() && {
  Put(static_cast<uint64_t>(XXH3_64bits(bytes_.data(), bytes_.size())));
  return std::move(bytes_);
}

std::string ByteReader::TakeText(size_t most) {
  const auto size = Take<uint16_t>();
  ok_ = ok_ && size <= most;
  if (!Has(size)) {
    return {};
  }
  std::string text(reinterpret_cast<const char*>(bytes_.data()), size);
  bytes_ = bytes_.subspan(size);
  return text;
}

ByteWriter BeginMessage(const MessageFormat& format, size_t type) {
  ByteWriter out;
  out.Put(format.magic);
  out.Put(format.version);
  out.Put(static_cast<uint16_t>(type));
  return out;
}

absl::StatusOr<OpenedMessage> OpenMessage(const MessageFormat& format,
                                          std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes || bytes.size() > format.max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", format.name, " message has ", bytes.size(), " bytes"));
  }
  ByteReader in(bytes.first(bytes.size() - kChecksumBytes));
  if (in.Take<uint32_t>() != format.magic) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", format.name, " message does not begin with its magic"));
  }
  if (const auto version = in.Take<uint16_t>(); version != format.version) {
    return absl::InvalidArgumentError(absl::StrCat("a ",
                                                   format.name,
                                                   " message has version ",
                                                   version,
                                                   "; this worker knows version ",
                                                   format.version));
  }
  ByteReader checksum(bytes.last(kChecksumBytes));
  if (checksum.Take<uint64_t>() != XXH3_64bits(bytes.data(), bytes.size() - kChecksumBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checksum of a ", format.name, " message does not match"));
  }
  const auto type = in.Take<uint16_t>();
  return OpenedMessage{.type = type, .fields = in};
}

}  // namespace baton::transport
