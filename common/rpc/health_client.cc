#include "common/rpc/health_client.h"

#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"

#include "common/rpc/request_metadata.h"
#include "common/rpc/status_mapping.h"

namespace baton::rpc {
namespace {

constexpr char kMethod[] = "/grpc.health.v1.Health/Check";
constexpr size_t kMaxNameBytes = 127;

// HealthCheckRequest{string service = 1} on the wire: tag 0x0a, length (one byte), bytes.
grpc::ByteBuffer EncodeRequest(const std::string& service) {
  std::string bytes;
  if (!service.empty()) {
    bytes = {'\x0a', static_cast<char>(service.size())};
    bytes += service;
  }
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// HealthCheckResponse{ServingStatus status = 1}: 08 01 is SERVING.
bool IsServing(const grpc::ByteBuffer& response) {
  grpc::Slice slice;
  return response.DumpToSingleSlice(&slice).ok() && slice.size() == 2 && slice.begin()[0] == 0x08 &&
         slice.begin()[1] == 0x01;
}

}  // namespace

absl::StatusOr<bool> CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                                 const std::string& service,
                                 absl::Time deadline) {
  if (service.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError("health: the service name is longer than 127 bytes");
  }
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  SetDeadline(deadline, &context);
  const grpc::ByteBuffer request = EncodeRequest(service);
  grpc::ByteBuffer response;
  grpc::Status status;
  absl::Notification done;
  stub.UnaryCall(
      &context, kMethod, grpc::StubOptions(), &request, &response, [&](grpc::Status result) {
        status = std::move(result);
        done.Notify();
      });
  done.WaitForNotification();
  if (!status.ok()) {
    return FromGrpcStatus(status);
  }
  return IsServing(response);
}

}  // namespace baton::rpc
