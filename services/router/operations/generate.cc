#include "services/router/operations/generate.h"

#include <memory>
#include <utility>

#include "common/rpc/status_mapping.h"
#include "services/router/operations/collect_response.h"
#include "services/router/operations/generate_call.h"

namespace baton::router {
namespace {

class GenerateReactor final : public grpc::ServerUnaryReactor, public GenerateCall {
 public:
  GenerateReactor(RouterCore* core,
                  grpc::CallbackServerContext* context,
                  const inference::v1::GenerateRequest* request,
                  inference::v1::GenerateResponse* response)
      : GenerateCall(core, context, request), response_(response) {}

  // gRPC holds the reactor until OnDone.
  void Hold(std::shared_ptr<GenerateReactor> self) { self_ = std::move(self); }

  void OnCancel() override { ClientGone(); }
  void OnDone() override { const auto self = std::move(self_); }

 private:
  bool Deliver(inference::v1::GenerateStreamResponse&& message) override {
    CollectResponse(std::move(message), response_);
    return false;
  }
  void End(const absl::Status& status) override { Finish(rpc::FinishStatus(context(), status)); }

  inference::v1::GenerateResponse* const response_;
  std::shared_ptr<GenerateReactor> self_;
};

}  // namespace

grpc::ServerUnaryReactor* StartGenerate(RouterCore* core,
                                        grpc::CallbackServerContext* context,
                                        const inference::v1::GenerateRequest* request,
                                        inference::v1::GenerateResponse* response) {
  auto reactor = std::make_shared<GenerateReactor>(core, context, request, response);
  reactor->Hold(reactor);
  reactor->Begin();
  return reactor.get();
}

}  // namespace baton::router
