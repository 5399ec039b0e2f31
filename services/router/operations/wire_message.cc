#include "services/router/operations/wire_message.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/proto_buffer_writer.h"
#include "grpcpp/support/slice.h"

#include "common/rpc/status_details.h"
#include "common/text/utf8.h"

namespace baton::router {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

struct BadString {
  std::string field;  // path from the message
  size_t offset = 0;  // of the first bad byte
};

std::optional<BadString> FindBadString(const Descriptor& type, const std::string& bytes);

// Looks at one field with a length; `value` is what it holds.
std::optional<BadString> CheckField(const FieldDescriptor& field, const std::string& value) {
  if (field.type() == FieldDescriptor::TYPE_STRING) {
    const size_t offset = text::FindInvalidUtf8(value);
    return offset == std::string::npos ? std::nullopt
                                       : std::optional(BadString{field.name(), offset});
  }
  if (field.type() != FieldDescriptor::TYPE_MESSAGE) {
    return std::nullopt;
  }
  std::optional<BadString> bad = FindBadString(*field.message_type(), value);
  if (bad.has_value()) {
    bad->field = absl::StrCat(field.name(), ".", bad->field);
  }
  return bad;
}

// The first string of a message of `type` that is not UTF-8. Public requests don't nest within
// themselves, so the recursion is as deep as the schema.
std::optional<BadString> FindBadString(const Descriptor& type, const std::string& bytes) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                      static_cast<int>(bytes.size()));
  std::string value;
  while (const uint32_t tag = in.ReadTag()) {
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&in, tag)) {
        return std::nullopt;
      }
      continue;
    }
    uint32_t size = 0;
    if (!in.ReadVarint32(&size) || !in.ReadString(&value, static_cast<int>(size))) {
      return std::nullopt;
    }
    const FieldDescriptor* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (field == nullptr) {
      continue;
    }
    if (std::optional<BadString> bad = CheckField(*field, value); bad.has_value()) {
      return bad;
    }
  }
  return std::nullopt;
}

std::string Flatten(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  return bytes.DumpToSingleSlice(&slice).ok()
             ? std::string(reinterpret_cast<const char*>(slice.begin()), slice.size())
             : std::string();
}

}  // namespace

absl::Status ParseRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message* request) {
  if (!bytes.Valid()) {
    return absl::CancelledError("the client left before its request came");
  }
  grpc::ByteBuffer shared = bytes;
  grpc::ProtoBufferReader reader(&shared);
  if (reader.status().ok() && request->ParseFromZeroCopyStream(&reader)) {
    return absl::OkStatus();
  }
  if (const auto bad = FindBadString(*request->GetDescriptor(), Flatten(bytes)); bad.has_value()) {
    return rpc::InvalidField(bad->field, absl::StrCat("is not valid UTF-8 at byte ", bad->offset));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the bytes received are no ", request->GetDescriptor()->full_name()));
}

grpc::ByteBuffer SerializeResponse(const google::protobuf::Message& response) {
  grpc::ByteBuffer bytes;
  grpc::ProtoBufferWriter writer(
      &bytes, grpc::kProtoBufferWriterMaxBufferLength, static_cast<int>(response.ByteSizeLong()));
  response.SerializeToZeroCopyStream(&writer);
  return bytes;
}

}  // namespace baton::router
