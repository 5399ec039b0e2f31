#include "common/transport/ucx/message.h"

#include <xxhash.h>

#include <concepts>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace baton::transport::ucx {
namespace {

constexpr size_t kHeaderBytes = 16;
constexpr size_t kChecksumBytes = 8;
constexpr uint8_t kMaxStatusCode = 16;

class Writer {
 public:
  template <std::unsigned_integral T>
  void Put(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff));
    }
  }
  void PutText(std::string_view text, size_t most) {
    text = text.substr(0, most);
    Put(static_cast<uint16_t>(text.size()));
    bytes_.append(text);
  }
  std::string Finish() && {
    Put(static_cast<uint64_t>(XXH3_64bits(bytes_.data(), bytes_.size())));
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
};

// After a first failure everything read is zero and ok() is false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

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
  std::string TakeText(size_t most) {
    const auto size = Take<uint16_t>();
    ok_ = ok_ && size <= most;
    if (!Has(size)) {
      return {};
    }
    std::string text(reinterpret_cast<const char*>(bytes_.data()), size);
    bytes_ = bytes_.subspan(size);
    return text;
  }
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

void Encode(Writer& out, const Hello& hello) { out.Put(hello.connection); }
void Decode(Reader& in, Hello& hello) { hello.connection = in.Take<uint64_t>(); }

void Encode(Writer& out, const Welcome& welcome) {
  out.Put(welcome.connection);
  out.Put(welcome.base);
  out.Put(welcome.slot_bytes);
  out.Put(welcome.slots);
  out.PutText(welcome.rkey, kMaxRkeyBytes);
}
void Decode(Reader& in, Welcome& welcome) {
  welcome.connection = in.Take<uint64_t>();
  welcome.base = in.Take<uint64_t>();
  welcome.slot_bytes = in.Take<uint32_t>();
  welcome.slots = in.Take<uint16_t>();
  welcome.rkey = in.TakeText(kMaxRkeyBytes);
  const uint64_t bytes = uint64_t{welcome.slot_bytes} * welcome.slots;
  in.Require(bytes > 0 && welcome.base <= UINT64_MAX - bytes &&
             (welcome.base == 0) == welcome.rkey.empty());
}

void Encode(Writer& out, const Request& request) {
  out.Put(request.post);
  out.Put(request.transfer_id);
  out.Put(request.total_bytes);
  out.PutText(request.window, kMaxWindowBytes);
}
void Decode(Reader& in, Request& request) {
  request.post = in.Take<uint64_t>();
  request.transfer_id = in.Take<uint64_t>();
  request.total_bytes = in.Take<uint64_t>();
  request.window = in.TakeText(kMaxWindowBytes);
  const uint64_t most = request.window.empty() ? kMaxProbeBytes : INT64_MAX;
  in.Require(request.total_bytes > 0 && request.total_bytes <= most);
}

void Encode(Writer& out, const Grant& grant) {
  out.Put(grant.post);
  out.Put(grant.generation);
  out.Put(grant.slot);
}
void Decode(Reader& in, Grant& grant) {
  grant.post = in.Take<uint64_t>();
  grant.generation = in.Take<uint32_t>();
  grant.slot = in.Take<uint16_t>();
}

void Encode(Writer& out, const Written& written) {
  out.Put(written.post);
  out.Put(written.generation);
  out.Put(written.slot);
  out.Put(static_cast<uint8_t>(written.last));
  out.Put(static_cast<uint16_t>(written.pieces.size()));
  for (const Piece& piece : written.pieces) {
    out.Put(piece.offset);
    out.Put(piece.size);
  }
  out.PutText(written.bytes, kMaxCarriedBytes);
}
void Decode(Reader& in, Written& written) {
  written.post = in.Take<uint64_t>();
  written.generation = in.Take<uint32_t>();
  written.slot = in.Take<uint16_t>();
  const auto last = in.Take<uint8_t>();
  const auto count = in.Take<uint16_t>();
  in.Require(last <= 1 && count > 0 && count <= kMaxPieces);
  written.last = last == 1;
  uint64_t bytes = 0;
  for (size_t i = 0; i < count && in.ok(); ++i) {
    Piece& piece = written.pieces.emplace_back();
    piece.offset = in.Take<uint64_t>();
    piece.size = in.Take<uint32_t>();
    in.Require(piece.size > 0 && piece.offset <= uint64_t{INT64_MAX} - piece.size);
    bytes += piece.size;
  }
  written.bytes = in.TakeText(kMaxCarriedBytes);
  in.Require(written.bytes.empty() || written.bytes.size() == bytes);
}

void Encode(Writer& out, const Verdict& verdict) {
  out.Put(verdict.post);
  out.Put(verdict.code);
  out.PutText(verdict.message, kMaxVerdictBytes);
}
void Decode(Reader& in, Verdict& verdict) {
  verdict.post = in.Take<uint64_t>();
  verdict.code = in.Take<uint8_t>();
  verdict.message = in.TakeText(kMaxVerdictBytes);
  in.Require(verdict.code <= kMaxStatusCode);
}

void Encode(Writer& out, const Release& release) { out.Put(release.post); }
void Decode(Reader& in, Release& release) { release.post = in.Take<uint64_t>(); }

// The body of which `type` is the place in the list.
template <size_t kIndex = 0>
absl::StatusOr<Body> DecodeBody(uint16_t type, Reader& in) {
  if constexpr (kIndex == std::variant_size_v<Body>) {
    return absl::InvalidArgumentError(absl::StrCat("a UCX message has the unknown type ", type));
  } else if (type != kIndex + 1) {
    return DecodeBody<kIndex + 1>(type, in);
  } else {
    std::variant_alternative_t<kIndex, Body> body;
    Decode(in, body);
    if (!in.at_end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the body of a UCX message of type ", type, " breaks the format"));
    }
    return body;
  }
}

}  // namespace

std::string EncodeMessage(const Message& message) {
  Writer out;
  out.Put(kMessageMagic);
  out.Put(kMessageVersion);
  out.Put(static_cast<uint16_t>(message.body.index() + 1));
  out.Put(message.connection);
  std::visit([&out](const auto& body) { Encode(out, body); }, message.body);
  return std::move(out).Finish();
}

absl::StatusOr<Message> DecodeMessage(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes || bytes.size() > kMaxMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a UCX message has ", bytes.size(), " bytes"));
  }
  Reader in(bytes.first(bytes.size() - kChecksumBytes));
  if (in.Take<uint32_t>() != kMessageMagic) {
    return absl::InvalidArgumentError("a UCX message does not begin with its magic");
  }
  if (const auto version = in.Take<uint16_t>(); version != kMessageVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a UCX message has version ", version, "; this worker knows version ", kMessageVersion));
  }
  Reader checksum(bytes.last(kChecksumBytes));
  if (checksum.Take<uint64_t>() != XXH3_64bits(bytes.data(), bytes.size() - kChecksumBytes)) {
    return absl::InvalidArgumentError("the checksum of a UCX message does not match");
  }
  const auto type = in.Take<uint16_t>();
  Message message;
  message.connection = in.Take<uint64_t>();
  absl::StatusOr<Body> body = DecodeBody(type, in);
  if (!body.ok()) {
    return body.status();
  }
  message.body = *std::move(body);
  return message;
}

}  // namespace baton::transport::ucx
