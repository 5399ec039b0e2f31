// Bounds: full queue, nobody to serve, draining, duplicates, slow clients, bad input.
#include <atomic>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "grpcpp/create_channel.h"

#include "common/rpc/health_client.h"
#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "tests/integration/router/router_fixture.h"

namespace baton::router {
namespace {

class LimitsTest : public RouterFixture {
 protected:
  bool Ready(const std::string& name) {
    const auto serving =
        rpc::CheckHealth(grpc::CreateChannel("127.0.0.1:" + std::to_string(router_->port()),
                                             grpc::InsecureChannelCredentials()),
                         name,
                         absl::Now() + absl::Seconds(10));
    return serving.ok() && *serving;
  }

  std::atomic<uint32_t> written_{0};
};

// Test T32.
TEST_F(LimitsTest, AFullQueueRefusesWithADelay) {
  AddPrefill().set_free_slots(0);
  AddDecode();
  RouterOptions options;
  options.queue.max_requests = 2;
  Start(options);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<inference::v1::GenerateStreamResponse>>> readers;
  for (int i = 0; i < 2; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub_->GenerateStream(contexts.back().get(), Request()));
  }
  ASSERT_TRUE(WaitUntil([this] { return router_->core().admission->queued().requests == 2; }));
  grpc::ClientContext context;
  const auto reader = stub_->GenerateStream(&context, Request());
  inference::v1::GenerateStreamResponse message;
  EXPECT_FALSE(reader->Read(&message));
  const absl::Status status = rpc::FromGrpcStatus(reader->Finish());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(rpc::ReasonOf(status), "QUEUE_FULL");
  EXPECT_TRUE(rpc::RetryAfter(status).has_value());
  EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
  for (auto& open : contexts) {
    open->TryCancel();
  }
  for (auto& open : readers) {
    while (open->Read(&message)) {
    }
    open->Finish();
  }
}

TEST_F(LimitsTest, WithoutWorkersARequestFailsAfterAShortWait) {
  RouterOptions options;
  options.endpoint_wait = absl::Milliseconds(100);
  Start(options);
  const StreamOutcome outcome = Stream(Request());
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(rpc::ReasonOf(outcome.status), "NO_ENDPOINTS");
  EXPECT_TRUE(rpc::RetryAfter(outcome.status).has_value());
  EXPECT_FALSE(Ready("readiness"));
  EXPECT_TRUE(Ready("liveness"));
}

TEST_F(LimitsTest, HealthFollowsTheWorkers) {
  FakeWorker& prefill = AddPrefill();
  AddDecode();
  Start();
  for (const char* name : {"", "readiness", "liveness", "baton.inference.v1.Inference"}) {
    EXPECT_TRUE(WaitUntil([&] { return Ready(name); })) << name;
  }
  prefill.Kill();
  EXPECT_TRUE(WaitUntil([&] { return !Ready("readiness"); }));
}

TEST_F(LimitsTest, DrainingRefusesNewRequestsAndFinishesRunningOnes) {
  FakeWorker& prefill = AddPrefill();
  AddDecode();
  std::atomic<bool> running{false};
  std::atomic<bool> go_on{false};
  prefill.set_prefill([&](int, grpc::ServerContext* context, const auto& request, auto* writer) {
    running = true;
    WaitUntil([&] { return go_on || context->IsCancelled(); });
    return prefill.NormalPrefill(context, request, writer);
  });
  Start();
  StreamOutcome outcome;
  std::thread client([&] { outcome = Stream(Request(3)); });
  ASSERT_TRUE(WaitUntil([&] { return running.load(); }));
  std::thread drain([this] { router_->Drain(absl::Seconds(30)); });
  EXPECT_TRUE(WaitUntil([this] { return !Ready("readiness"); }));
  const StreamOutcome refused = Stream(Request());
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(rpc::ReasonOf(refused.status), "DRAINING");
  go_on = true;
  drain.join();
  client.join();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
}

TEST_F(LimitsTest, ADuplicateOfARunningIdIsRefusedAndAFinishedOneIsNot) {
  FakeWorker& prefill = AddPrefill();
  AddDecode();
  std::atomic<bool> go_on{false};
  prefill.set_prefill([&](int, grpc::ServerContext* context, const auto& request, auto* writer) {
    WaitUntil([&] { return go_on || context->IsCancelled(); });
    return prefill.NormalPrefill(context, request, writer);
  });
  Start();
  inference::v1::GenerateRequest request = Request(2);
  request.set_request_id("same");
  StreamOutcome first;
  std::thread client([&] { first = Stream(request); });
  ASSERT_TRUE(WaitUntil([this] { return router_->core().running.size() == 1; }));
  EXPECT_EQ(Stream(request).status.code(), absl::StatusCode::kAlreadyExists);
  go_on = true;
  client.join();
  EXPECT_TRUE(first.status.ok());
  EXPECT_TRUE(Stream(request).status.ok());
}

// Sends `count` messages of 100 tokens with logprobs for each of the request's sequences.
grpc::Status FloodDecode(uint32_t n,
                         uint32_t count,
                         std::atomic<uint32_t>* written,
                         DecodeWriter* writer) {
  worker::v1::DecodeEvent event;
  for (int i = 0; i < 100; ++i) {
    worker::v1::Token* token = event.mutable_tokens()->add_tokens();
    token->set_id(FakeWorker::kNextToken);
    token->set_logprob(-1.0f);
    for (uint32_t k = 0; k < 20; ++k) {
      auto* top = token->add_top_logprobs();
      top->set_token_id(1000 + k);
      top->set_logprob(-1.0f);
    }
  }
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t index = 0; index < n; ++index) {
      event.mutable_tokens()->set_index(index);
      if (!writer->Write(event)) {
        return grpc::Status::CANCELLED;
      }
      ++*written;
    }
  }
  for (uint32_t index = 0; index < n; ++index) {
    worker::v1::DecodeEvent finished;
    finished.mutable_finished()->set_index(index);
    finished.mutable_finished()->set_reason(worker::v1::FINISH_REASON_LENGTH);
    writer->Write(finished);
  }
  worker::v1::DecodeEvent usage;
  usage.mutable_usage();
  writer->Write(usage);
  return grpc::Status::OK;
}

TEST_F(LimitsTest, AClientThatStopsReadingStopsDecodeAndDelaysNobody) {
  AddPrefill();
  FakeWorker& decode = AddDecode();
  decode.set_pool_tokens(1 << 20);
  RouterOptions options;
  options.max_stream_buffer_bytes = 4096;
  Start(options);
  constexpr uint32_t kSequences = 8;
  constexpr uint32_t kMessages = 300;  // of each sequence: about 60 MB in all
  decode.set_decode([&](int call, grpc::ServerContext* context, const auto& request, auto* writer) {
    if (call > 1) {
      return decode.NormalDecode(context, request, writer);
    }
    handoffs_.WaitForCommit(decode.WriteReserved(request, writer), context);
    return FloodDecode(kSequences, kMessages, &written_, writer);
  });
  // A client whose gRPC keeps little, so that the router notices early that nobody reads.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto slow_stub = inference::v1::Inference::NewStub(
      grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(router_->port()),
                                grpc::InsecureChannelCredentials(),
                                arguments));
  grpc::ClientContext context;
  inference::v1::GenerateRequest slow = Request(kMessages * 100 + 1);
  slow.mutable_sampling()->set_n(kSequences);
  const auto reader = slow_stub->GenerateStream(&context, slow);
  // Decode stalls: flow control has reached it through the router.
  uint32_t last = 0;
  ASSERT_TRUE(WaitUntil([&] {
    absl::SleepFor(absl::Milliseconds(500));
    const uint32_t now = written_;
    const bool stalled = now > 0 && now == last;
    last = now;
    return stalled;
  }));
  EXPECT_LT(written_, kSequences * kMessages);
  RecordProperty("messages_before_the_stall", static_cast<int>(last));
  EXPECT_TRUE(Stream(Request(50)).status.ok()) << "another stream is served meanwhile";
  // Reading on gives everything.
  uint32_t tokens = 0;
  bool usage = false;
  inference::v1::GenerateStreamResponse message;
  while (reader->Read(&message)) {
    tokens += static_cast<uint32_t>(message.delta().token_ids_size());
    usage = usage || message.has_usage();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(usage);
  EXPECT_EQ(tokens, kSequences * (kMessages * 100 + 1));
}

TEST_F(LimitsTest, BadInputIsNamedOnTheWire) {
  AddPrefill();
  AddDecode().set_pool_tokens(1000);
  Start();
  inference::v1::GenerateRequest bad = Request();
  bad.mutable_sampling()->set_temperature(-1.0f);
  absl::Status status = Stream(bad).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(rpc::FieldViolations(status).size(), 1u);
  EXPECT_EQ(rpc::FieldViolations(status)[0].field, "sampling.temperature");

  status = Stream(Request(2000)).status;
  EXPECT_EQ(rpc::ReasonOf(status), "EXCEEDS_CAPACITY") << status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);

  inference::v1::GenerateRequest other = Request();
  other.set_model("other");
  EXPECT_EQ(Stream(other).status.code(), absl::StatusCode::kNotFound);
  other = Request();
  other.set_kv_policy("diffkv");
  EXPECT_EQ(Stream(other).status.code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace baton::router
