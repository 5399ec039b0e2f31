// Any bytes as a GenerateRequest: they are read as they are or refused as INVALID_ARGUMENT, and
// what is read survives being written again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/operations/wire_message.h"

namespace {

// Entries of maps come in an order of their own from message to message, unless asked for.
std::string InOneOrder(const baton::inference::v1::GenerateRequest& request) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.SetSerializationDeterministic(true);
  if (!request.SerializeToCodedStream(&out)) {
    std::abort();
  }
  out.Trim();
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const grpc::Slice slice(data, size);
  const grpc::ByteBuffer bytes(&slice, 1);
  baton::inference::v1::GenerateRequest request;
  const absl::Status status = baton::router::ParseRequest(bytes, &request);
  if (!status.ok()) {
    if (!absl::IsInvalidArgument(status) || status.message().empty()) {
      std::abort();
    }
    return 0;
  }
  baton::inference::v1::GenerateRequest again;
  if (!baton::router::ParseRequest(baton::router::SerializeResponse(request), &again).ok() ||
      InOneOrder(again) != InOneOrder(request)) {
    std::abort();
  }
  return 0;
}
