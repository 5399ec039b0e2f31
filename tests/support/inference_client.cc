#include "tests/support/inference_client.h"

#include <atomic>
#include <memory>
#include <thread>

#include "absl/time/clock.h"

namespace baton::testing {
namespace {

void Apply(const inference::v1::GenerateStreamResponse& message, StreamResult& result) {
  result.started |= message.has_started();
  if (message.has_delta() && message.delta().index() == 0) {
    result.text += message.delta().text();
    result.token_ids.insert(result.token_ids.end(),
                            message.delta().token_ids().begin(),
                            message.delta().token_ids().end());
  }
  result.finished += message.has_finished() ? 1 : 0;
  if (message.has_usage()) {
    result.usage_seen = true;
    result.usage = message.usage();
  }
}

}  // namespace

InferenceClient::InferenceClient(const std::string& router_address,
                                 const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // gRPC must not take megabytes on behalf of a test that has stopped to read.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  stub_ = inference::v1::Inference::NewStub(grpc::CreateCustomChannel(
      router_address,
      credentials != nullptr ? credentials : grpc::InsecureChannelCredentials(),
      arguments));
}

StreamResult InferenceClient::Run(const inference::v1::GenerateRequest& request,
                                  const StreamOptions& options) const {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + options.timeout));
  StreamResult result;
  auto reader = stub_->GenerateStream(&context, request);
  std::atomic<bool> ended = false;
  std::thread canceller;
  if (options.cancel_after != absl::InfiniteDuration() || options.cancel != nullptr) {
    canceller = std::thread([&] {
      const absl::Time when = absl::Now() + options.cancel_after;
      const auto due = [&] {
        return absl::Now() >= when ||
               (options.cancel != nullptr && options.cancel->HasBeenNotified());
      };
      while (!ended && !due()) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      if (!ended) {
        context.TryCancel();
      }
    });
  }
  inference::v1::GenerateStreamResponse message;
  while (reader->Read(&message)) {
    Apply(message, result);
    if (options.keep_going && !options.keep_going(result)) {
      context.TryCancel();
    }
  }
  ended = true;
  result.status = reader->Finish();
  if (canceller.joinable()) {
    canceller.join();
  }
  return result;
}

inference::v1::GenerateRequest TokenRequest(int prompt_tokens, int max_tokens, int variant) {
  inference::v1::GenerateRequest request;
  for (int i = 0; i < prompt_tokens; ++i) {
    request.mutable_token_ids()->add_ids(
        static_cast<uint32_t>(300 + (i * 7 + variant * 13) % 3000));
  }
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(max_tokens));
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

}  // namespace baton::testing
