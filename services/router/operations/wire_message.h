// Messages of raw methods: read and written here rather than by gRPC.
#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"

namespace baton::router {

// Reads a request. kInvalidArgument names the string that is not UTF-8; gRPC's own reading would
// refuse the message as UNIMPLEMENTED without a word. kCancelled: there is none, because the call
// ended before it came.
absl::Status ParseRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message* request);

grpc::ByteBuffer SerializeResponse(const google::protobuf::Message& response);

}  // namespace baton::router
