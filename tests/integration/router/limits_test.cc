// Bounds: full queue, nobody to serve, draining, duplicates, slow clients, bad input.
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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

  // A client whose gRPC keeps little, so that the router notices early that nobody reads.
  std::unique_ptr<inference::v1::Inference::Stub> StubThatKeepsLittle() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return inference::v1::Inference::NewStub(
        grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(router_->port()),
                                  grpc::InsecureChannelCredentials(),
                                  arguments));
  }

  std::atomic<uint32_t> written_{0};
};

struct QueueCase {
  const char* name;
  scheduling::QueueLimits limits;  // room for two of the test's requests
};

void PrintTo(const QueueCase& limit, std::ostream* out) { *out << limit.name; }

class QueueLimitTest : public LimitsTest, public ::testing::WithParamInterface<QueueCase> {};

// Catalogue T32: the queue is bounded by requests, by tokens and by bytes.
TEST_P(QueueLimitTest, AFullQueueRefusesWithADelayAndTakesMoreWhenThereIsRoom) {
  AddPrefill().set_free_slots(0);
  AddDecode();
  RouterOptions options;
  options.queue = GetParam().limits;
  Start(options);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<inference::v1::GenerateStreamResponse>>> readers;
  const auto open = [&] {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub_->GenerateStream(contexts.back().get(), Request()));
  };
  const auto queued = [this] { return router_->core().admission->queued().requests; };
  inference::v1::GenerateStreamResponse message;
  open();
  open();
  ASSERT_TRUE(WaitUntil([&] { return queued() == 2; }));
  grpc::ClientContext context;
  const auto reader = stub_->GenerateStream(&context, Request());
  EXPECT_FALSE(reader->Read(&message));
  const absl::Status status = rpc::FromGrpcStatus(reader->Finish());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(rpc::ReasonOf(status), "QUEUE_FULL");
  EXPECT_TRUE(rpc::RetryAfter(status).has_value());
  EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
  contexts.front()->TryCancel();
  ASSERT_TRUE(WaitUntil([&] { return queued() == 1; }));
  open();
  EXPECT_TRUE(WaitUntil([&] { return queued() == 2; }));
  for (size_t i = 0; i < readers.size(); ++i) {
    contexts[i]->TryCancel();
    while (readers[i]->Read(&message)) {
    }
    readers[i]->Finish();
  }
}

constexpr int64_t kMany = 1 << 20;
// A request of the fixture has a prompt of two tokens, four bytes each.
INSTANTIATE_TEST_SUITE_P(
    Limits,
    QueueLimitTest,
    ::testing::Values(
        QueueCase{"Requests", {.max_requests = 2, .max_tokens = kMany, .max_bytes = kMany}},
        QueueCase{"Tokens", {.max_requests = kMany, .max_tokens = 5, .max_bytes = kMany}},
        QueueCase{"Bytes", {.max_requests = kMany, .max_tokens = kMany, .max_bytes = 20}}),
    [](const auto& test) { return test.param.name; });

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
  const auto slow_stub = StubThatKeepsLittle();
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

TEST_F(LimitsTest, AnAnswerTooLargeForOneMessageNamesTheStream) {
  AddPrefill();
  FakeWorker& decode = AddDecode();
  decode.set_pool_tokens(1 << 20);
  Start();
  constexpr uint32_t kSequences = 8;
  constexpr uint32_t kMessages = 300;  // of each sequence: about 60 MB in all
  decode.set_decode([&](int, grpc::ServerContext* context, const auto& request, auto* writer) {
    handoffs_.WaitForCommit(decode.WriteReserved(request, writer), context);
    return FloodDecode(kSequences, kMessages, &written_, writer);
  });
  inference::v1::GenerateRequest request = Request(kMessages * 100 + 1);
  request.mutable_sampling()->set_n(kSequences);
  grpc::ClientContext context;
  inference::v1::GenerateResponse response;
  const absl::Status status = rpc::FromGrpcStatus(stub_->Generate(&context, request, &response));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(rpc::ReasonOf(status), "ANSWER_TOO_LARGE");
  EXPECT_LT(written_, kSequences * kMessages) << "decode is cancelled";
}

TEST_F(LimitsTest, DrainingWaitsForAnswersThatAreNotReadYet) {
  AddPrefill();
  FakeWorker& decode = AddDecode();
  decode.set_pool_tokens(1 << 20);
  RouterOptions options;
  options.max_stream_buffer_bytes = 16 << 20;
  Start(options);
  constexpr uint32_t kMessages = 100;  // about 2.5 MB
  decode.set_decode([&](int, grpc::ServerContext* context, const auto& request, auto* writer) {
    handoffs_.WaitForCommit(decode.WriteReserved(request, writer), context);
    return FloodDecode(/*sequences=*/1, kMessages, &written_, writer);
  });
  const auto stub = StubThatKeepsLittle();
  grpc::ClientContext context;
  const auto reader = stub->GenerateStream(&context, Request(kMessages * 100 + 1));
  ASSERT_TRUE(WaitUntil([this] { return written_ == kMessages; }));
  ASSERT_TRUE(WaitUntil([this] { return router_->core().running.size() == 0; }));
  std::atomic<bool> drained{false};
  std::thread drain([&] {
    router_->Drain(absl::Seconds(30));
    drained = true;
  });
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_FALSE(drained);
  bool usage = false;
  inference::v1::GenerateStreamResponse message;
  while (reader->Read(&message)) {
    usage = usage || message.has_usage();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(usage);
  drain.join();
}

// The first field that the status names, with what is said about it.
std::string FirstViolation(const absl::Status& status) {
  const auto violations = rpc::FieldViolations(status);
  return violations.empty() ? "" : violations[0].field + ": " + violations[0].description;
}

TEST_F(LimitsTest, BadInputIsNamedOnTheWire) {
  AddPrefill();
  AddDecode().set_pool_tokens(1000);
  Start();
  using Spoil = std::function<void(inference::v1::GenerateRequest*)>;
  const auto refuse = [&](const Spoil& spoil) {
    inference::v1::GenerateRequest request = Request();
    spoil(&request);
    return Stream(request).status;
  };
  const std::vector<std::pair<Spoil, std::string>> cases = {
      {[](auto* r) { r->mutable_sampling()->set_temperature(-1.0f); }, "sampling.temperature: "},
      {[](auto* r) { r->mutable_sampling()->set_temperature(std::nanf("")); },
       "sampling.temperature: "},
      {[](auto* r) { r->mutable_stopping()->set_max_tokens(0); }, "stopping.max_tokens: "},
      {[](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[4096] = 1; },
       "sampling.logit_bias[4096]: unknown token id; the vocabulary size is 4096"},
      {[](auto* r) { r->set_text(""); }, "text: must not be empty"},
      {[](auto* r) { r->mutable_token_ids()->clear_ids(); }, "token_ids.ids: must not be empty"},
      {[](auto* r) { r->set_text("a\xff"); }, "text: is not valid UTF-8 at byte 1"},
      {[](auto* r) {
         auto* message = r->mutable_chat()->add_messages();
         message->set_role("user");
         message->set_content("\xc3");
       },
       "chat.messages.content: is not valid UTF-8 at byte 0"},
      {[](auto* r) { r->mutable_token_ids()->mutable_ids()->Resize(32768, 5); },
       "token_ids.ids: the prompt has 32768 tokens; with at least one token of output the limit is "
       "32767"},
      {[](auto* r) { r->mutable_stopping()->set_max_tokens(2000); },
       "stopping.max_tokens: prompt + n x max_tokens is 2002 tokens; the largest KV pool holds "
       "1000"}};
  for (const auto& [spoil, violation] : cases) {
    const absl::Status status = refuse(spoil);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << violation << status;
    EXPECT_TRUE(FirstViolation(status).starts_with(violation)) << FirstViolation(status);
    EXPECT_FALSE(rpc::RetryAfter(status).has_value()) << violation;
  }
  EXPECT_EQ(rpc::ReasonOf(refuse([](auto* r) { r->mutable_stopping()->set_max_tokens(2000); })),
            "EXCEEDS_CAPACITY");
  EXPECT_EQ(refuse([](auto* r) { r->set_model("other"); }).code(), absl::StatusCode::kNotFound);
  for (const char* policy : {"nonsense", "snapkv:budget=64"}) {
    EXPECT_EQ(refuse([&](auto* r) { r->set_kv_policy(policy); }).code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(Stream(Request()).status.ok());
}

TEST_F(LimitsTest, UnaryCallsNameAStringThatIsNotUtf8) {
  AddPrefill();
  AddDecode();
  Start();
  grpc::ClientContext generate_context;
  inference::v1::GenerateRequest generate;
  generate.set_text("\xff");
  inference::v1::GenerateResponse response;
  EXPECT_EQ(
      FirstViolation(rpc::FromGrpcStatus(stub_->Generate(&generate_context, generate, &response))),
      "text: is not valid UTF-8 at byte 0");
  grpc::ClientContext tokenize_context;
  inference::v1::TokenizeRequest tokenize;
  tokenize.set_text("ab\xff");
  inference::v1::TokenizeResponse tokens;
  EXPECT_EQ(
      FirstViolation(rpc::FromGrpcStatus(stub_->Tokenize(&tokenize_context, tokenize, &tokens))),
      "text: is not valid UTF-8 at byte 2");
}

}  // namespace
}  // namespace baton::router
