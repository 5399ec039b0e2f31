#include "common/transport/ucx/message.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/transport/message_bytes.h"

namespace baton::transport::ucx {
namespace {

constexpr MessageFormat kFormat = {.name = "UCX",
                                   .magic = kMessageMagic,
                                   .version = kMessageVersion,
                                   .max_bytes = kMaxMessageBytes};
constexpr uint8_t kMaxStatusCode = 16;

void Encode(ByteWriter& out, const Hello& hello) { out.Put(hello.connection); }
void Decode(ByteReader& in, Hello& hello) { hello.connection = in.Take<uint64_t>(); }

void Encode(ByteWriter& out, const Welcome& welcome) {
  out.Put(welcome.connection);
  out.Put(welcome.base);
  out.Put(welcome.slot_bytes);
  out.Put(welcome.slots);
  out.PutText(welcome.rkey, kMaxRkeyBytes);
}
void Decode(ByteReader& in, Welcome& welcome) {
  welcome.connection = in.Take<uint64_t>();
  welcome.base = in.Take<uint64_t>();
  welcome.slot_bytes = in.Take<uint32_t>();
  welcome.slots = in.Take<uint16_t>();
  welcome.rkey = in.TakeText(kMaxRkeyBytes);
  const uint64_t bytes = uint64_t{welcome.slot_bytes} * welcome.slots;
  in.Require(bytes > 0 && welcome.base <= UINT64_MAX - bytes &&
             (welcome.base == 0) == welcome.rkey.empty());
}

void Encode(ByteWriter& out, const Request& request) {
  out.Put(request.post);
  out.Put(request.transfer_id);
  out.Put(request.total_bytes);
  out.PutText(request.window, kMaxWindowBytes);
}
void Decode(ByteReader& in, Request& request) {
  request.post = in.Take<uint64_t>();
  request.transfer_id = in.Take<uint64_t>();
  request.total_bytes = in.Take<uint64_t>();
  request.window = in.TakeText(kMaxWindowBytes);
  const uint64_t most = request.window.empty() ? kMaxProbeBytes : INT64_MAX;
  in.Require(request.total_bytes > 0 && request.total_bytes <= most);
}

void Encode(ByteWriter& out, const Grant& grant) {
  out.Put(grant.post);
  out.Put(grant.generation);
  out.Put(grant.slot);
}
void Decode(ByteReader& in, Grant& grant) {
  grant.post = in.Take<uint64_t>();
  grant.generation = in.Take<uint32_t>();
  grant.slot = in.Take<uint16_t>();
}

void Encode(ByteWriter& out, const Written& written) {
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
void Decode(ByteReader& in, Written& written) {
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

void Encode(ByteWriter& out, const Verdict& verdict) {
  out.Put(verdict.post);
  out.Put(verdict.code);
  out.PutText(verdict.message, kMaxVerdictBytes);
}
void Decode(ByteReader& in, Verdict& verdict) {
  verdict.post = in.Take<uint64_t>();
  verdict.code = in.Take<uint8_t>();
  verdict.message = in.TakeText(kMaxVerdictBytes);
  in.Require(verdict.code <= kMaxStatusCode);
}

void Encode(ByteWriter& out, const Release& release) { out.Put(release.post); }
void Decode(ByteReader& in, Release& release) { release.post = in.Take<uint64_t>(); }

}  // namespace

std::string EncodeMessage(const Message& message) {
  ByteWriter out = BeginMessage(kFormat, message.body.index() + 1);
  out.Put(message.connection);
  std::visit([&out](const auto& body) { Encode(out, body); }, message.body);
  return std::move(out).Seal();
}

absl::StatusOr<Message> DecodeMessage(std::span<const std::byte> bytes) {
  BATON_ASSIGN_OR_RETURN(OpenedMessage opened, OpenMessage(kFormat, bytes));
  Message message;
  message.connection = opened.fields.Take<uint64_t>();
  BATON_ASSIGN_OR_RETURN(
      message.body,
      DecodeBody<Body>(kFormat, opened.type, opened.fields, [](ByteReader& in, auto& body) {
        Decode(in, body);
      }));
  return message;
}

}  // namespace baton::transport::ucx
