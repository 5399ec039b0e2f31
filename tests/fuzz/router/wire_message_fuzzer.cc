// Any bytes as a GenerateRequest: they are read as they are or refused as INVALID_ARGUMENT, and
// what is read survives being written again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/operations/wire_message.h"

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
      again.SerializeAsString() != request.SerializeAsString()) {
    std::abort();
  }
  return 0;
}
