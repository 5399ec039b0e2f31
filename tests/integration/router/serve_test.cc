// Requests that go well, and the small rpcs.
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"

#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "services/router/router_options.h"
#include "services/router/workers/worker.h"
#include "tests/integration/router/fake_cluster.h"
#include "tests/integration/router/router_fixture.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;

class ServeTest : public RouterFixture {};

TEST_F(ServeTest, StreamsStartedTokensFinishedUsageInOrder) {
  AddPrefill();
  AddDecode();
  Start();
  const StreamOutcome outcome = Stream(Request(4));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.token_ids, ElementsAre(300, 301, 301, 301));
  ASSERT_GE(outcome.messages.size(), 4u);
  EXPECT_TRUE(outcome.messages.front().has_started());
  EXPECT_EQ(outcome.messages.front().started().prompt_tokens(), 2u);
  EXPECT_EQ(outcome.messages.front().started().model(), "needle");
  EXPECT_TRUE(outcome.messages.back().has_usage());
  EXPECT_EQ(outcome.finished, 1);
  EXPECT_EQ(outcome.usage.completion_tokens(), 4u);
  EXPECT_EQ(outcome.usage.kv_wire_bytes(), 1234u);
  EXPECT_EQ(outcome.usage.kv_resident_bytes(), 4321u);
  EXPECT_EQ(outcome.usage.retries(), 0u);
  EXPECT_FALSE(outcome.request_id_header.empty());
  EXPECT_TRUE(WaitUntil([this] { return WorkersIdle(); }));
}

TEST_F(ServeTest, GenerateIsTheStreamCollected) {
  AddPrefill();
  AddDecode();
  Start();
  inference::v1::GenerateRequest request = Request(3);
  request.mutable_sampling()->set_n(2);
  grpc::ClientContext context;
  inference::v1::GenerateResponse response;
  const grpc::Status status = stub_->Generate(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.choices_size(), 2);
  for (const auto& choice : response.choices()) {
    EXPECT_THAT(choice.token_ids(), ElementsAre(300, 301, 301));
    EXPECT_EQ(choice.finished().reason(), inference::v1::FINISH_REASON_LENGTH);
  }
  EXPECT_EQ(response.usage().completion_tokens(), 6u);
  EXPECT_EQ(response.started().prompt_tokens(), 2u);
}

TEST_F(ServeTest, DecodeGetsThePolicyAsWrittenAndPrefillWhatDecodeMadeOfIt) {
  FakeWorker& prefill = AddPrefill();
  FakeWorker& decode = AddDecode();
  absl::Mutex mutex;
  std::vector<std::string> asked;
  const auto note = [&](const std::string& policy) {
    absl::MutexLock lock(&mutex);
    asked.push_back(policy);
  };
  decode.set_decode([&](int, auto* context, const auto& request, DecodeWriter* writer) {
    note("decode " + request.kv_policy());
    worker::v1::DecodeRequest served = request;
    if (request.kv_policy() == "shadowkv") {
      served.set_kv_policy("dense");  // too short a prompt
    } else if (request.kv_policy() == "diffkv:w=32,every=1") {
      served.set_kv_policy("diffkv:w=32");  // decode knows the defaults
    }
    return decode.NormalDecode(context, served, writer);
  });
  prefill.set_prefill([&](int, auto* context, const auto& request, PrefillWriter* writer) {
    note("prefill " + request.kv_policy());
    return prefill.NormalPrefill(context, request, writer);
  });
  Start();
  for (const auto& [policy, served] : std::vector<std::pair<std::string, std::string>>{
           {"", "dense"}, {"diffkv:w=32,every=1", "diffkv:w=32"}, {"shadowkv", "dense"}}) {
    inference::v1::GenerateRequest request = Request();
    request.set_kv_policy(policy);
    const StreamOutcome outcome = Stream(request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.messages.front().started().kv_policy(), served);
    EXPECT_EQ(outcome.usage.kv_format(), served);
  }
  EXPECT_THAT(asked,
              ElementsAre("decode dense",
                          "prefill dense",
                          "decode diffkv:w=32,every=1",
                          "prefill diffkv:w=32",
                          "decode shadowkv",
                          "prefill dense"));
}

// An explicit policy that a worker can't do is the client's to change: nothing is tried elsewhere.
TEST_F(ServeTest, APolicyThatAWorkerCannotDoIsFailedPrecondition) {
  FakeWorker& prefill = AddPrefill();
  FakeWorker& decode = AddDecode();
  const auto refuse = [](const std::string& policy) {
    return rpc::ToGrpcStatus(
        rpc::WithReason(absl::FailedPreconditionError(policy + " is not served by this engine"),
                        rpc::reason::kPolicyNotServed));
  };
  decode.set_decode([&](int, auto* context, const auto& request, DecodeWriter* writer) {
    return request.kv_policy() == "fp8" ? refuse("fp8")
                                        : decode.NormalDecode(context, request, writer);
  });
  prefill.set_prefill(
      [&](int, auto*, const auto& request, PrefillWriter*) { return refuse(request.kv_policy()); });
  Start();
  int calls = 0;
  for (const char* policy : {"fp8", "diffkv"}) {
    inference::v1::GenerateRequest request = Request();
    request.set_kv_policy(policy);
    const StreamOutcome outcome = Stream(request);
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kFailedPrecondition) << outcome.status;
    EXPECT_EQ(rpc::ReasonOf(outcome.status), "POLICY_NOT_SERVED");
    EXPECT_NE(outcome.status.message().find(policy), absl::string_view::npos) << outcome.status;
    EXPECT_EQ(decode.calls(), ++calls);
    EXPECT_TRUE(WaitUntil([this] { return WorkersIdle(); }));
  }
  EXPECT_EQ(prefill.calls(), 1);
}

TEST_F(ServeTest, RequestsAtOnceAllEndAndLeaveNothingBehind) {
  AddPrefill();
  AddPrefill();
  AddDecode();
  AddDecode();
  Start();
  constexpr int kRequests = 24;
  std::vector<std::thread> threads;
  threads.reserve(kRequests);
  std::atomic<int> good{0};
  for (int i = 0; i < kRequests; ++i) {
    threads.emplace_back([&] {
      const StreamOutcome outcome = Stream(Request(8));
      good += outcome.status.ok() && outcome.token_ids.size() == 8 ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(good, kRequests);
  EXPECT_TRUE(WaitUntil([this] { return WorkersIdle(); }));
  EXPECT_EQ(router_->core().running.size(), 0u);
}

TEST_F(ServeTest, RoleBothServesWithoutAPrefillWorker) {
  AddDecode(worker::v1::ROLE_BOTH);
  Start();
  const StreamOutcome outcome = Stream(Request(3));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.token_ids, ElementsAre(301, 301, 301));
  EXPECT_EQ(outcome.usage.kv_wire_bytes(), 0u);
}

TEST_F(ServeTest, AWorkerOfTheWrongRoleIsNotUsed) {
  AddPrefill();
  AddDecode(worker::v1::ROLE_PREFILL);
  RouterOptions options;
  options.endpoint_wait = absl::Milliseconds(50);
  options.model = std::string(BATON_SOURCE_DIR) + "/tests/data/models/tiny-llama-needle";
  options.prefill = prefills_[0]->address();
  options.decode = decodes_[0]->address();
  auto router = RouterServer::Start(options);
  ASSERT_TRUE(router.ok()) << router.status();
  const auto workers = (*router)->core().workers->List(WorkerKind::kDecode);
  ASSERT_TRUE(WaitUntil([&] { return workers[0]->view().report_age < absl::InfiniteDuration(); }));
  EXPECT_FALSE((*router)->core().admission->CanServe());
}

TEST_F(ServeTest, TheCallersRequestIdComesBackAndReachesTheWorkers) {
  AddPrefill();
  FakeWorker& decode = AddDecode();
  std::string seen;
  std::string seen_header;
  std::string trace;
  decode.set_decode([&](int, grpc::ServerContext* context, const auto& request, DecodeWriter* w) {
    seen = request.request_id();
    for (const auto& [key, value] : context->client_metadata()) {
      const std::string name(key.data(), key.size());
      if (name == "x-request-id") seen_header = std::string(value.data(), value.size());
      if (name == "traceparent") trace = std::string(value.data(), value.size());
    }
    return decode.NormalDecode(context, request, w);
  });
  Start();
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "abc-1");
  constexpr char kTrace[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  context.AddMetadata("traceparent", kTrace);
  inference::v1::GenerateResponse response;
  ASSERT_TRUE(stub_->Generate(&context, Request(2), &response).ok());
  EXPECT_EQ(seen, "abc-1");
  EXPECT_EQ(seen_header, "abc-1");
  EXPECT_EQ(trace, kTrace);
  EXPECT_EQ(response.started().request_id(), "abc-1");
}

TEST_F(ServeTest, AStopStringCutsTheAnswerAndEndsTheWorkersCalls) {
  AddPrefill();
  FakeWorker& decode = AddDecode();
  Start();
  // The text of the fake's token, as the stop string.
  grpc::ClientContext detokenize_context;
  inference::v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids(FakeWorker::kNextToken);
  inference::v1::DetokenizeResponse text;
  ASSERT_TRUE(stub_->Detokenize(&detokenize_context, detokenize, &text).ok());
  inference::v1::GenerateRequest request = Request(20000);
  request.mutable_stopping()->add_stop(text.text());
  const StreamOutcome outcome = Stream(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.usage.completion_tokens(), 2u);
  EXPECT_EQ(outcome.finished, 1);
  EXPECT_TRUE(WaitUntil([this] { return WorkersIdle(); }));
  EXPECT_LT(decode.tokens_written(), 20000);
}

// Catalogue T25: what prefill's token says is neither lost nor delivered past a stop.
TEST_F(ServeTest, AStopStringInTheFirstTokenEndsTheAnswerWithIt) {
  AddPrefill();
  AddDecode();
  Start();
  grpc::ClientContext detokenize_context;
  inference::v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids(FakeWorker::kFirstToken);
  inference::v1::DetokenizeResponse text;
  ASSERT_TRUE(stub_->Detokenize(&detokenize_context, detokenize, &text).ok());
  for (const bool included : {false, true}) {
    inference::v1::GenerateRequest request = Request(20000);
    request.mutable_stopping()->add_stop(text.text());
    request.mutable_stopping()->set_include_stop_str(included);
    grpc::ClientContext context;
    inference::v1::GenerateResponse response;
    const grpc::Status status = stub_->Generate(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response.choices_size(), 1);
    EXPECT_EQ(response.choices(0).text(), included ? text.text() : "");
    EXPECT_EQ(response.choices(0).finished().reason(), inference::v1::FINISH_REASON_STOP);
    EXPECT_EQ(response.choices(0).finished().stop(), text.text());
    EXPECT_EQ(response.usage().completion_tokens(), 1u);
    EXPECT_TRUE(WaitUntil([this] { return WorkersIdle(); }));
  }
}

TEST_F(ServeTest, LeasesAreRenewedWhilePrefillTakesItsTime) {
  FakeWorker& prefill = AddPrefill();
  FakeWorker& decode = AddDecode();
  prefill.set_prefill([&](int, grpc::ServerContext* context, const auto& request, auto* writer) {
    WaitUntil([&] { return decode.renewals() >= 3 || context->IsCancelled(); });
    return prefill.NormalPrefill(context, request, writer);
  });
  Start();
  EXPECT_TRUE(Stream(Request()).status.ok());
  EXPECT_GE(decode.renewals(), 3);
}

TEST_F(ServeTest, TheSmallRpcsAnswer) {
  AddPrefill();
  AddDecode();
  Start();
  grpc::ClientContext list_context;
  inference::v1::ListModelsResponse models;
  ASSERT_TRUE(stub_->ListModels(&list_context, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).name(), "needle");
  EXPECT_EQ(models.models(0).vocab_size(), 4096u);
  EXPECT_EQ(models.models(0).kv_logical_bytes_per_token(), 12u * 2 * 2 * 64 * 2);
  EXPECT_TRUE(models.models(0).has_chat_template());

  grpc::ClientContext tokenize_context;
  inference::v1::TokenizeRequest tokenize;
  tokenize.set_text("the silent chapel");
  inference::v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&tokenize_context, tokenize, &tokens).ok());
  grpc::ClientContext detokenize_context;
  inference::v1::DetokenizeRequest detokenize;
  *detokenize.mutable_token_ids() = tokens.token_ids();
  detokenize.set_skip_special_tokens(true);
  inference::v1::DetokenizeResponse text;
  ASSERT_TRUE(stub_->Detokenize(&detokenize_context, detokenize, &text).ok());
  EXPECT_EQ(text.text(), "the silent chapel");

  grpc::ClientContext info_context;
  inference::v1::GetModelInfoRequest info_request;
  info_request.set_model("other");
  inference::v1::ModelInfo info;
  EXPECT_EQ(stub_->GetModelInfo(&info_context, info_request, &info).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServeTest, MetricsCountWhatHappened) {
  AddPrefill();
  AddDecode();
  Start();
  ASSERT_TRUE(Stream(Request(4)).status.ok());
  const std::string text = router_->core().metrics->registry().Text();
  EXPECT_NE(text.find("process_start_time_seconds{"), std::string::npos);
  for (const char* line :
       {"baton_requests_total{code=\"OK\",model_name=\"needle\",role=\"router\"} 1",
        "baton_generation_tokens_total{model_name=\"needle\",role=\"router\"} 4",
        "baton_time_to_first_token_seconds_count{model_name=\"needle\",role=\"router\"} 1",
        "baton_inter_token_latency_seconds_count{model_name=\"needle\",role=\"router\"} 3",
        "baton_ready{model_name=\"needle\",role=\"router\"} 1"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

TEST_F(ServeTest, WorkersAreCountedByRoleAndState) {
  AddPrefill();
  AddPrefill();
  AddDecode();
  Start();
  const auto count = [&](const std::string& role, const std::string& state) {
    const std::string text = router_->core().metrics->registry().Text();
    const std::string line = "baton_workers{model_name=\"needle\",role=\"router\",state=\"" +
                             state + "\",worker_role=\"" + role + "\"} ";
    const size_t begin = text.find(line);
    return begin == std::string::npos ? -1 : std::stoi(text.substr(begin + line.size()));
  };
  EXPECT_TRUE(WaitUntil([&] { return count("prefill", "ready") == 2; }));
  EXPECT_EQ(count("decode", "ready"), 1);
  decodes_[0]->set_draining(true);
  prefills_[1]->Kill();
  EXPECT_TRUE(WaitUntil([&] { return count("decode", "draining") == 1; }));
  EXPECT_TRUE(WaitUntil([&] { return count("prefill", "unavailable") == 1; }));
  EXPECT_EQ(count("prefill", "ready"), 1);
  EXPECT_EQ(count("decode", "ready"), 0);
}

}  // namespace
}  // namespace baton::router
