#include "common/transport/ipc/message.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/transport/message_bytes.h"

namespace baton::transport::ipc {
namespace {

constexpr MessageFormat kFormat = {.name = "local",
                                   .magic = kMessageMagic,
                                   .version = kMessageVersion,
                                   .max_bytes = kMaxMessageBytes};
constexpr uint8_t kMaxStatusCode = 16;

void Encode(ByteWriter& /*out*/, const Hello& /*hello*/) {}
void Decode(ByteReader& /*in*/, Hello& /*hello*/) {}

void Encode(ByteWriter& out, bool flag) { out.Put(static_cast<uint8_t>(flag)); }
void Decode(ByteReader& in, bool& flag) {
  const auto value = in.Take<uint8_t>();
  in.Require(value <= 1);
  flag = value == 1;
}

// What an answer says of how something ended.
void EncodeStatus(ByteWriter& out, uint8_t code, const std::string& message) {
  out.Put(code);
  out.PutText(message, kMaxVerdictBytes);
}
void DecodeStatus(ByteReader& in, uint8_t& code, std::string& message) {
  code = in.Take<uint8_t>();
  message = in.TakeText(kMaxVerdictBytes);
  in.Require(code <= kMaxStatusCode);
}

void Encode(ByteWriter& out, const Welcome& welcome) { Encode(out, welcome.imports_devices); }
void Decode(ByteReader& in, Welcome& welcome) { Decode(in, welcome.imports_devices); }

void Encode(ByteWriter& out, const Export& exported) {
  out.Put(exported.block);
  out.Put(exported.size);
  Encode(out, exported.of_device);
}
void Decode(ByteReader& in, Export& exported) {
  exported.block = in.Take<uint32_t>();
  exported.size = in.Take<uint64_t>();
  Decode(in, exported.of_device);
  in.Require(exported.block != 0 && exported.size > 0 && exported.size <= INT64_MAX);
}

void Encode(ByteWriter& out, const Imported& imported) {
  out.Put(imported.block);
  EncodeStatus(out, imported.code, imported.message);
}
void Decode(ByteReader& in, Imported& imported) {
  imported.block = in.Take<uint32_t>();
  DecodeStatus(in, imported.code, imported.message);
}

void Encode(ByteWriter& out, const std::vector<Piece>& pieces) {
  out.Put(static_cast<uint16_t>(pieces.size()));
  for (const Piece& piece : pieces) {
    out.Put(piece.offset);
    out.Put(piece.size);
    out.Put(piece.block);
    out.Put(piece.source);
  }
}
void Decode(ByteReader& in, std::vector<Piece>& pieces) {
  const auto count = in.Take<uint16_t>();
  in.Require(count <= kMaxPieces);
  for (size_t i = 0; i < count && in.ok(); ++i) {
    Piece& piece = pieces.emplace_back();
    piece.offset = in.Take<uint64_t>();
    piece.size = in.Take<uint64_t>();
    piece.block = in.Take<uint32_t>();
    piece.source = in.Take<uint64_t>();
    in.Require(piece.size > 0 && piece.size <= INT64_MAX &&
               piece.offset <= INT64_MAX - piece.size && piece.source <= INT64_MAX - piece.size);
  }
}

void Encode(ByteWriter& out, const Request& request) {
  out.Put(request.post);
  out.Put(request.transfer_id);
  out.Put(request.total_bytes);
  out.PutText(request.window, kMaxWindowBytes);
  Encode(out, request.pieces);
}
void Decode(ByteReader& in, Request& request) {
  request.post = in.Take<uint64_t>();
  request.transfer_id = in.Take<uint64_t>();
  request.total_bytes = in.Take<uint64_t>();
  request.window = in.TakeText(kMaxWindowBytes);
  in.Require(request.total_bytes > 0 && request.total_bytes <= INT64_MAX);
  Decode(in, request.pieces);
  in.Require(request.pieces.size() <= kMaxRequestPieces);
  for (const Piece& piece : request.pieces) {
    in.Require(piece.block != 0);
  }
}

void Encode(ByteWriter& out, const Ready& ready) { out.Put(ready.post); }
void Decode(ByteReader& in, Ready& ready) { ready.post = in.Take<uint64_t>(); }

void Encode(ByteWriter& out, const Written& written) {
  out.Put(written.post);
  Encode(out, written.last);
  Encode(out, written.pieces);
  out.PutText(written.bytes, kMaxCarriedBytes);
}
void Decode(ByteReader& in, Written& written) {
  written.post = in.Take<uint64_t>();
  Decode(in, written.last);
  Decode(in, written.pieces);
  in.Require(!written.pieces.empty());
  uint64_t carried = 0;
  for (const Piece& piece : written.pieces) {
    if (piece.block == 0) {
      in.Require(piece.source == 0 && piece.size <= kMaxCarriedBytes - carried);
      carried += in.ok() ? piece.size : 0;
    }
  }
  written.bytes = in.TakeText(kMaxCarriedBytes);
  in.Require(written.bytes.size() == carried);
}

void Encode(ByteWriter& out, const Verdict& verdict) {
  out.Put(verdict.post);
  EncodeStatus(out, verdict.code, verdict.message);
}
void Decode(ByteReader& in, Verdict& verdict) {
  verdict.post = in.Take<uint64_t>();
  DecodeStatus(in, verdict.code, verdict.message);
}

void Encode(ByteWriter& out, const Release& release) { out.Put(release.post); }
void Decode(ByteReader& in, Release& release) { release.post = in.Take<uint64_t>(); }

}  // namespace

std::string EncodeMessage(const Message& message) {
  ByteWriter out = BeginMessage(kFormat, message.index() + 1);
  std::visit([&out](const auto& body) { Encode(out, body); }, message);
  return std::move(out).Seal();
}

absl::StatusOr<Message> DecodeMessage(std::span<const std::byte> bytes) {
  BATON_ASSIGN_OR_RETURN(OpenedMessage opened, OpenMessage(kFormat, bytes));
  return DecodeBody<Message>(
      kFormat, opened.type, opened.fields, [](ByteReader& in, auto& body) { Decode(in, body); });
}

}  // namespace baton::transport::ipc
