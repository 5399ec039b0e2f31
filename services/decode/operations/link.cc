#include "services/decode/operations/link.h"

#include "grpcpp/support/status.h"

#include "common/transport/nccl/nccl_transport.h"

namespace baton::decode::operations {
namespace {

using worker::v1::LinkMessage;

class Refusal final : public grpc::ServerBidiReactor<LinkMessage, LinkMessage> {
 public:
  Refusal() {
    Finish({grpc::StatusCode::UNIMPLEMENTED, "this worker does not offer the transport nccl"});
  }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerBidiReactor<LinkMessage, LinkMessage>* Link(transport::NcclTransport* transport,
                                                        grpc::CallbackServerContext* context) {
  if (transport == nullptr) {
    return new Refusal();
  }
  return transport->NewLinkReactor(context);
}

}  // namespace baton::decode::operations
