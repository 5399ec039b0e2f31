#include "services/router/operations/generate_stream.h"

#include <memory>
#include <utility>

#include "common/rpc/status_mapping.h"
#include "services/router/operations/generate_call.h"

namespace baton::router {
namespace {

class GenerateStreamReactor final
    : public grpc::ServerWriteReactor<inference::v1::GenerateStreamResponse>,
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
    message_ = std::move(message);
    StartWrite(&message_);
    return true;
  }
  void End(const absl::Status& status) override { Finish(rpc::FinishStatus(context(), status)); }

  std::shared_ptr<GenerateStreamReactor> self_;
  inference::v1::GenerateStreamResponse message_;
};

}  // namespace

grpc::ServerWriteReactor<inference::v1::GenerateStreamResponse>* StartGenerateStream(
    RouterCore* core,
    grpc::CallbackServerContext* context,
    const inference::v1::GenerateRequest* request) {
  auto reactor = std::make_shared<GenerateStreamReactor>(core, context, request);
  reactor->Hold(reactor);
  reactor->Begin();
  return reactor.get();
}

}  // namespace baton::router
