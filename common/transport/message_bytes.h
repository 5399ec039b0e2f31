// What the binary messages between two workers' transports are made of.
//
// All numbers are little-endian. A message is
//   u32 magic, u16 version, u16 type, fields, u64 XXH3-64 of all that
// and has no other bytes.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace baton::transport {

struct MessageFormat {
  const char* name = "";  // in errors: "a UCX message ..."
  uint32_t magic = 0;
  uint16_t version = 0;
  size_t max_bytes = 0;  // of a message
};

// Fields one behind the other.
class ByteWriter {
 public:
  template <std::unsigned_integral T>
  void Put(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff));
    }
  }
  // u16 size, bytes; those beyond `most` are cut.
  void PutText(std::string_view text, size_t most);
  // The message, with its checksum.
  std::string Seal() &&;

 private:
  std::string bytes_;
};

// After a first failure everything read is zero and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <std::unsigned_integral T>
  T Take() {
    uint64_t value = 0;
    if (!Has(sizeof(T))) {
      return 0;
    }
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<uint64_t>(bytes_[i]) << (8 * i);
    }
    bytes_ = bytes_.subspan(sizeof(T));
    return static_cast<T>(value);
  }
  // More bytes than `most` are a failure.
  std::string TakeText(size_t most);
  void Require(bool condition) { ok_ = ok_ && condition; }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && bytes_.empty(); }

 private:
  bool Has(size_t size) {
    ok_ = ok_ && size <= bytes_.size();
    return ok_;
  }

  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

// Up to and with the type.
ByteWriter BeginMessage(const MessageFormat& format, size_t type);

struct OpenedMessage {
  uint16_t type = 0;
  ByteReader fields;
};

// kInvalidArgument when size, magic, version or checksum are wrong. Borrows `bytes`.
absl::StatusOr<OpenedMessage> OpenMessage(const MessageFormat& format,
                                          std::span<const std::byte> bytes);

// The alternative of the variant Body whose place, from 1, is `type`, read by decode(in, body) to
// the end of the message. kInvalidArgument.
template <typename Body, typename DecodeField, size_t kIndex = 0>
absl::StatusOr<Body> DecodeBody(const MessageFormat& format,
                                uint16_t type,
                                ByteReader& in,
                                const DecodeField& decode) {
  if constexpr (kIndex == std::variant_size_v<Body>) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", format.name, " message has the unknown type ", type));
  } else if (type != kIndex + 1) {
    return DecodeBody<Body, DecodeField, kIndex + 1>(format, type, in, decode);
  } else {
    std::variant_alternative_t<kIndex, Body> body;
    decode(in, body);
    if (!in.at_end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the body of a ", format.name, " message of type ", type, " breaks the format"));
    }
    return body;
  }
}

}  // namespace baton::transport
