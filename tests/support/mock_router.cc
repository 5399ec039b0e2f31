#include "tests/support/mock_router.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "google/protobuf/util/time_util.h"
#include "grpcpp/alarm.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/server_callback.h"

#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"

namespace baton::testing {
namespace {

using inference::v1::GenerateRequest;
using inference::v1::GenerateStreamResponse;

constexpr uint32_t kVocabulary = 4096;
constexpr uint32_t kContext = 1 << 20;
constexpr uint64_t kLogicalBytesPerToken = 100;
constexpr uint64_t kWireBytesPerToken = 60;

// One stream; deletes itself.
class Stream final : public grpc::ServerWriteReactor<GenerateStreamResponse> {
 public:
  Stream(const GenerateRequest& request, const MockRouterOptions& options)
      : options_(options), tokens_(request.stopping().max_tokens()), policy_(request.kv_policy()) {
    prompt_tokens_ = static_cast<uint32_t>(request.token_ids().ids_size());
    if (policy_ == "refuse") {
      Finish(rpc::ToGrpcStatus(
          rpc::ResourceExhausted(rpc::reason::kQueueFull, "the queue is full", absl::Seconds(1))));
      return;
    }
    message_.mutable_started()->set_request_id(request.request_id());
    message_.mutable_started()->set_prompt_tokens(prompt_tokens_);
    message_.mutable_started()->set_kv_policy(policy_.empty() ? "dense" : policy_);
    StartWrite(&message_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::CANCELLED);
    } else if (written_ < tokens_) {
      WriteTokenAfter(written_ == 0 ? options_.first_token : options_.token_interval);
    } else if (message_.has_delta()) {
      message_.mutable_finished()->set_reason(inference::v1::FINISH_REASON_LENGTH);
      StartWrite(&message_);
    } else if (message_.has_finished() && policy_ != "incomplete") {
      SetUsage(message_.mutable_usage());
      StartWrite(&message_);
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnDone() override { delete this; }

 private:
  void WriteTokenAfter(absl::Duration pause) {
    if (pause <= absl::ZeroDuration()) {
      WriteToken();
      return;
    }
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(absl::ToChronoTime(absl::Now() + pause), [this](bool) { WriteToken(); });
  }

  void WriteToken() {
    if (written_++ == 0) {
      first_token_ = absl::Now();
    }
    inference::v1::Delta* delta = message_.mutable_delta();
    delta->clear_token_ids();
    delta->add_token_ids(written_ % kVocabulary);
    delta->set_text("x");
    StartWrite(&message_);
  }

  void SetUsage(inference::v1::Usage* usage) const {
    using google::protobuf::util::TimeUtil;
    usage->set_prompt_tokens(prompt_tokens_);
    usage->set_completion_tokens(written_);
    *usage->mutable_time_to_first_token() =
        TimeUtil::NanosecondsToDuration(absl::ToInt64Nanoseconds(first_token_ - began_));
    *usage->mutable_total_time() =
        TimeUtil::NanosecondsToDuration(absl::ToInt64Nanoseconds(absl::Now() - began_));
    usage->set_kv_logical_bytes(prompt_tokens_ * kLogicalBytesPerToken);
    usage->set_kv_wire_bytes(prompt_tokens_ * kWireBytesPerToken);
  }

  const MockRouterOptions options_;
  const uint32_t tokens_;
  const std::string policy_;
  const absl::Time began_ = absl::Now();
  uint32_t prompt_tokens_ = 0;
  uint32_t written_ = 0;
  absl::Time first_token_ = began_;
  GenerateStreamResponse message_;
  std::unique_ptr<grpc::Alarm> alarm_;
};

}  // namespace

class MockRouter::Service final : public inference::v1::Inference::CallbackService {
 public:
  explicit Service(const MockRouterOptions& options) : options_(options) {}

  grpc::ServerWriteReactor<GenerateStreamResponse>* GenerateStream(
      grpc::CallbackServerContext*, const GenerateRequest* request) override {
    {
      absl::MutexLock lock(&mutex_);
      requests_.push_back(*request);
    }
    return new Stream(*request, options_);
  }

  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const inference::v1::GetModelInfoRequest*,
                                         inference::v1::ModelInfo* model) override {
    model->set_name("mock");
    model->set_vocab_size(kVocabulary);
    model->set_max_sequence_tokens(kContext);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  std::vector<GenerateRequest> requests() const {
    absl::MutexLock lock(&mutex_);
    return requests_;
  }

 private:
  const MockRouterOptions options_;
  mutable absl::Mutex mutex_;
  std::vector<GenerateRequest> requests_ ABSL_GUARDED_BY(mutex_);
};

MockRouter::MockRouter(const MockRouterOptions& options)
    : service_(std::make_unique<Service>(options)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
}

MockRouter::~MockRouter() { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

std::vector<GenerateRequest> MockRouter::requests() const { return service_->requests(); }

}  // namespace baton::testing
