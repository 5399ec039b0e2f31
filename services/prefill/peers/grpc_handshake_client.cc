#include "services/prefill/peers/grpc_handshake_client.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/client_context.h"

#include "common/base/status_context.h"
#include "common/rpc/request_metadata.h"
#include "common/rpc/status_mapping.h"
#include "proto/baton/worker/v1/kv_transfer.grpc.pb.h"

namespace baton::prefill {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);

}  // namespace

absl::StatusOr<worker::v1::HandshakeResponse> GrpcHandshakeClient::Handshake(
    const std::string& control_address, const worker::v1::HandshakeRequest& request) {
  const auto stub = worker::v1::KvTransfer::NewStub(channels_.Get(control_address));
  grpc::ClientContext context;
  rpc::SetDeadline(absl::Now() + kTimeout, &context);
  worker::v1::HandshakeResponse response;
  const grpc::Status status = stub->Handshake(&context, request, &response);
  if (!status.ok()) {
    return WithContext(rpc::FromGrpcStatus(status),
                       absl::StrCat("handshake with decode worker ", control_address));
  }
  return response;
}

}  // namespace baton::prefill
