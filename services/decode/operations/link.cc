#include "services/decode/operations/link.h"

#include "grpcpp/support/status.h"

#include "common/transport/nccl/nccl_transport.h"
#include "common/worker/worker.h"

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

grpc::ServerBidiReactor<LinkMessage, LinkMessage>* Link(worker::Worker& worker,
                                                        transport::NcclTransport* transport,
                                                        grpc::CallbackServerContext* context) {
  if (transport == nullptr) {
    return new Refusal();
  }
  worker.metrics().RecordTransport(transport->name());
  return transport->NewLinkReactor(context);
}

}  // namespace baton::decode::operations
