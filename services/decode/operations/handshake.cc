#include "services/decode/operations/handshake.h"

#include <utility>

#include "common/rpc/status_mapping.h"
#include "common/worker/engine_status.h"

namespace baton::decode::operations {

grpc::ServerUnaryReactor* Handshake(const handoff::Landing& landing,
                                    grpc::CallbackServerContext* context,
                                    const worker::v1::HandshakeRequest& request,
                                    worker::v1::HandshakeResponse* response) {
  absl::StatusOr<worker::v1::HandshakeResponse> answer = landing.Handshake(request);
  const absl::Status status = answer.status();
  if (answer.ok()) {
    *response = *std::move(answer);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::FinishStatus(context, worker::DescribeStatus(status)));
  return reactor;
}

}  // namespace baton::decode::operations
