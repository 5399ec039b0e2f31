#include "services/router/operations/generate_stream.h"

#include <memory>
#include <utility>

#include "common/rpc/status_mapping.h"
#include "services/router/operations/generate_call.h"
#include "services/router/operations/wire_message.h"

namespace baton::router {
namespace {

class GenerateStreamReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                                    public GenerateCall {
 public:
  using GenerateCall::GenerateCall;

  // gRPC holds the reactor until OnDone.
  void Hold(std::shared_ptr<GenerateStreamReactor> self) { self_ = std::move(self); }

  void OnWriteDone(bool ok) override { DeliveryDone(ok); }
  void OnCancel() override { ClientGone(); }
  void OnDone() override { const auto self = std::move(self_); }

 private:
  bool Deliver(inference::v1::GenerateStreamResponse&& message) override {
    message_ = SerializeResponse(message);
    StartWrite(&message_);
    return true;
  }
  void End(const absl::Status& status) override { Finish(rpc::FinishStatus(context(), status)); }

  std::shared_ptr<GenerateStreamReactor> self_;
  grpc::ByteBuffer message_;  // being written
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGenerateStream(
    RouterCore* core, grpc::CallbackServerContext* context, const grpc::ByteBuffer& request) {
  auto reactor = std::make_shared<GenerateStreamReactor>(core, context);
  reactor->Hold(reactor);
  reactor->Begin(request);
  return reactor.get();
}

}  // namespace baton::router
