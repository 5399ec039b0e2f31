// Prefill and decode workers whose KV goes over something else than gRPC.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "gtest/gtest.h"

#include "common/engine/engine.h"
#include "common/transport/ucx/ucx_transport.h"
#include "common/worker/worker.h"
#include "common/worker/worker_options.h"
#include "proto/baton/worker/v1/prefill.grpc.pb.h"
#include "tests/integration/worker/worker_pair.h"

namespace baton {
namespace {

using testing::HasSubstr;

worker::WorkerOptions Options(engine::Role role, std::vector<std::string> transports) {
  worker::WorkerOptions options = TinyOptions(role);
  options.transports = std::move(transports);
  // A prompt's segments take several slots, and several prompts share them.
  options.ucx.slot_bytes = 64 << 10;
  return options;
}

double Granted(worker::Worker& worker) {
  double slots = 0;
  for (const auto& [name, value] : Gauges(worker)) {
    slots += absl::StartsWith(name, "baton_kv_landing_slots") ? value : 0;
  }
  return slots;
}

class WorkersTest : public testing::Test {
 protected:
  void Start(const worker::WorkerOptions& prefill, const worker::WorkerOptions& decode) {
    prefill_ = StartPrefill(prefill);
    decode_ = StartDecode(decode);
    ASSERT_TRUE(prefill_ != nullptr && decode_ != nullptr);
  }
  grpc::StatusCode Introduce(const std::vector<std::string>& addresses) {
    grpc::ClientContext context;
    worker::v1::IntroduceRequest request;
    request.mutable_control_addresses()->Assign(addresses.begin(), addresses.end());
    worker::v1::IntroduceResponse response;
    return worker::v1::Prefill::NewStub(ChannelTo(prefill_->worker()))
        ->Introduce(&context, request, &response)
        .error_code();
  }
  Outcome Split(const Request& request) {
    return RunSplit(ChannelTo(prefill_->worker()), ChannelTo(decode_->worker()), request);
  }

  std::unique_ptr<decode::DecodeServer> decode_;
  std::unique_ptr<prefill::PrefillServer> prefill_;
};

class TransportsTest : public WorkersTest, public testing::WithParamInterface<const char*> {};

TEST_P(TransportsTest, TokensEqualThoseOverGrpcInEveryFormat) {
  Start(Options(engine::Role::kPrefill, {GetParam()}),
        Options(engine::Role::kDecode, {GetParam(), "grpc"}));
  const auto grpc_prefill = StartPrefill(TinyOptions(engine::Role::kPrefill));
  ASSERT_NE(grpc_prefill, nullptr);
  for (const char* policy : {"dense", "diffkv", "shadowkv:rank=8,budget=8,outliers=1,local=1"}) {
    for (const int prompt_tokens : {1, 33, 700}) {
      SCOPED_TRACE(absl::StrCat(policy, " ", prompt_tokens));
      Request request = GreedyRequest(absl::StrCat("r-", policy, prompt_tokens), prompt_tokens, 12);
      request.kv_policy = policy;
      const Outcome other = Split(request);
      const Outcome grpc =
          RunSplit(ChannelTo(grpc_prefill->worker()), ChannelTo(decode_->worker()), request);
      ASSERT_TRUE(other.status.ok()) << other.status;
      ASSERT_TRUE(grpc.status.ok()) << grpc.status;
      EXPECT_EQ(other.tokens, grpc.tokens);
      EXPECT_EQ(other.committed.kv_logical_bytes(), grpc.committed.kv_logical_bytes());
      EXPECT_THAT(other.committed.transport(), testing::StartsWith(GetParam()));
      EXPECT_EQ(grpc.committed.transport(), "grpc");
    }
  }
  EXPECT_TRUE(Eventually([&] { return Granted(decode_->worker()) == 0; }));
  EXPECT_TRUE(AtBaseline(decode_->worker()));
  EXPECT_TRUE(AtBaseline(prefill_->worker()));
}

TEST_P(TransportsTest, ConcurrentAndCancelledRequestsLeaveNothingBehind) {
  Start(Options(engine::Role::kPrefill, {GetParam()}),
        Options(engine::Role::kDecode, {GetParam()}));
  constexpr int kThreads = 8;
  std::vector<Outcome> outcomes(kThreads);
  const Outcome alone = Split(GreedyRequest("alone", 300, 10));
  ASSERT_TRUE(alone.status.ok()) << alone.status;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 4; ++round) {
        const Request request = GreedyRequest(absl::StrCat("r-", i, "-", round), 300, 10);
        if ((i + round) % 2 == 0) {
          outcomes[static_cast<size_t>(i)] = Split(request);
          continue;
        }
        DecodeCall decode(ChannelTo(decode_->worker()), request, false);
        worker::v1::Reserved reserved;
        if (decode.ReadReserved(&reserved)) {
          PrefillCall prefill(ChannelTo(prefill_->worker()), request, reserved);
          prefill.ReadUntilProgress();
          decode.Cancel();
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.tokens, alone.tokens);
  }
  EXPECT_TRUE(AtBaseline(decode_->worker()));
  EXPECT_TRUE(AtBaseline(prefill_->worker()));
  EXPECT_TRUE(Eventually([&] { return Granted(decode_->worker()) == 0; }));
}

TEST_P(TransportsTest, WorkersThatShareOnlyGrpcUseIt) {
  Start(Options(engine::Role::kPrefill, {GetParam(), "grpc"}),
        Options(engine::Role::kDecode, {"grpc"}));
  const Outcome outcome = Split(GreedyRequest("r", 40, 4));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.committed.transport(), "grpc");
}

TEST_P(TransportsTest, RestartedDecodeWorkerIsConnectedToAgain) {
  Start(Options(engine::Role::kPrefill, {GetParam()}),
        Options(engine::Role::kDecode, {GetParam()}));
  ASSERT_TRUE(Split(GreedyRequest("before", 40, 4)).status.ok());
  worker::WorkerOptions same = Options(engine::Role::kDecode, {GetParam()});
  same.listen = decode_->worker().address();
  decode_.reset();
  decode_ = StartDecode(same);
  ASSERT_NE(decode_, nullptr);
  EXPECT_TRUE(Eventually([&] { return Split(GreedyRequest("after", 40, 4)).status.ok(); }));
}

// UCX where the build has it.
std::vector<const char*> Names() {
  std::vector<const char*> names = {"ipc"};
  if (transport::UcxTransport::available()) {
    names.push_back("ucx");
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Over,
                         TransportsTest,
                         testing::ValuesIn(Names()),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_F(WorkersTest, UcxIsPublishedWithItsCarrier) {
  if (!transport::UcxTransport::available()) {
    GTEST_SKIP() << "the build has no UCX";
  }
  Start(Options(engine::Role::kPrefill, {"ucx"}), Options(engine::Role::kDecode, {"ucx"}));
  ASSERT_TRUE(Split(GreedyRequest("r", 40, 4)).status.ok());
  EXPECT_THAT(decode_->worker().metrics().registry().Text(), HasSubstr("transport=\"ucx/"));
}

TEST_F(WorkersTest, PairsThatWereIntroducedAreConnectedBeforeARequest) {
  if (!transport::UcxTransport::available()) {
    GTEST_SKIP() << "the build has no UCX";
  }
  Start(Options(engine::Role::kPrefill, {"ucx"}), Options(engine::Role::kDecode, {"ucx"}));
  EXPECT_EQ(Introduce({decode_->worker().address()}), grpc::StatusCode::OK);
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(decode_->worker().metrics().registry().Text(), "transport=\"ucx/");
  }));
}

TEST_F(WorkersTest, IntroductionsThatNameNoAddressAreRefused) {
  Start(TinyOptions(engine::Role::kPrefill), TinyOptions(engine::Role::kDecode));
  EXPECT_EQ(Introduce({decode_->worker().address(), "nowhere"}),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Introduce(std::vector<std::string>(1025, decode_->worker().address())),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(WorkersTest, RequiredRdmaThatUcxDoesNotSelectFailsThePrecondition) {
  if (!transport::UcxTransport::available()) {
    GTEST_SKIP() << "the build has no UCX";
  }
  worker::WorkerOptions strict = Options(engine::Role::kPrefill, {"ucx"});
  strict.ucx.require_rdma = true;
  Start(strict, Options(engine::Role::kDecode, {"ucx"}));
  const Outcome outcome = Split(GreedyRequest("r", 40, 4));
  if (outcome.status.ok()) {
    GTEST_SKIP() << "this machine has RDMA: " << outcome.committed.transport();
  }
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kFailedPrecondition) << outcome.status;
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("UCX selected ucx/"));
}

}  // namespace
}  // namespace baton
