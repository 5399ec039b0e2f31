#include "services/router/operations/generate.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/rpc/limits.h"
#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "services/router/operations/collect_response.h"
#include "services/router/operations/generate_call.h"
#include "services/router/operations/wire_message.h"

namespace baton::router {
namespace {

// What one message may hold, less what framing and status details take.
constexpr size_t kMaxAnswerBytes = size_t{rpc::kPublicMessageBytes} - (64 << 10);

class GenerateReactor final : public grpc::ServerUnaryReactor, public GenerateCall {
 public:
  GenerateReactor(RouterCore* core,
                  grpc::CallbackServerContext* context,
                  grpc::ByteBuffer* response)
      : GenerateCall(core, context), response_(response) {}

  // gRPC holds the reactor until OnDone.
  void Hold(std::shared_ptr<GenerateReactor> self) { self_ = std::move(self); }

  void OnCancel() override { ClientGone(); }
  void OnDone() override { const auto self = std::move(self_); }

 private:
  bool Deliver(inference::v1::GenerateStreamResponse&& message) override {
    bytes_ += message.ByteSizeLong();
    if (bytes_ > kMaxAnswerBytes) {
      collected_.Clear();
      Refuse(rpc::WithReason(
          absl::ResourceExhaustedError(absl::StrCat(
              "the answer is larger than ", kMaxAnswerBytes, " bytes; ask by GenerateStream")),
          rpc::reason::kAnswerTooLarge,
          {}));
      return false;
    }
    CollectResponse(std::move(message), &collected_);
    return false;
  }
  void End(const absl::Status& status) override {
    *response_ = SerializeResponse(collected_);
    Finish(rpc::FinishStatus(context(), status));
  }

  grpc::ByteBuffer* const response_;
  inference::v1::GenerateResponse collected_;
  size_t bytes_ = 0;  // of the messages collected
  std::shared_ptr<GenerateReactor> self_;
};

}  // namespace

grpc::ServerUnaryReactor* StartGenerate(RouterCore* core,
                                        grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer& request,
                                        grpc::ByteBuffer* response) {
  auto reactor = std::make_shared<GenerateReactor>(core, context, response);
  reactor->Hold(reactor);
  reactor->Begin(request);
  return reactor.get();
}

}  // namespace baton::router
