// A prefill worker ships KV that it has retained, to the same or another decode worker, without
// computing the prompt again.
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "common/engine/engine.h"
#include "common/metrics/metric_families.h"
#include "common/rpc/status_details.h"
#include "common/worker/worker_options.h"
#include "services/decode/decode_server.h"
#include "tests/integration/worker/worker_pair.h"

namespace baton {
namespace {

constexpr int kLongPrompt = 6000;

class RetentionTest : public testing::Test {
 protected:
  void StartWorkers(int64_t retain_bytes, absl::Duration lease = absl::Minutes(10)) {
    worker::WorkerOptions options = TinyOptions(engine::Role::kPrefill);
    options.retain_bytes = retain_bytes;
    options.retain_lease = lease;
    prefill_ = StartPrefill(options);
    worker::WorkerOptions patient = TinyOptions(engine::Role::kDecode);
    patient.engine.lease = absl::Minutes(1);  // nobody renews leases here
    first_ = StartDecode(patient);
    second_ = StartDecode(patient);
    ASSERT_TRUE(prefill_ != nullptr && first_ != nullptr && second_ != nullptr);
    channel_ = ChannelTo(prefill_->worker());
  }

  // Reserves on `decode`, ships there, and decodes.
  Outcome Run(decode::DecodeServer& decode, const Request& request, bool use_retained_kv) {
    Outcome outcome = EmptyOutcome(request);
    DecodeCall decode_call(ChannelTo(decode.worker()), request, /*with_prompt=*/false);
    worker::v1::Reserved reserved;
    EXPECT_TRUE(decode_call.ReadReserved(&reserved));
    PrefillCall(channel_, request, reserved, 1, use_retained_kv).ReadAll(outcome);
    if (outcome.status.ok()) {
      decode_call.ReadAll(outcome);
    }
    return outcome;
  }
  double PrefilledTokens() {
    return prefill_->worker().metrics().registry().Get(metrics::kStepTokens, {"prefill"}).Value();
  }
  double Lookups(const char* outcome) {
    return prefill_->worker()
        .metrics()
        .registry()
        .Get(metrics::kKvRetainedLookups, {outcome})
        .Value();
  }
  static double Gauge(worker::Worker& worker, const std::string& prefix) {
    for (const auto& [name, value] : Gauges(worker)) {
      if (name.starts_with(prefix)) {
        return value;
      }
    }
    return -1;
  }
  double Retained(const std::string& what) const {
    return Gauge(prefill_->worker(), "baton_kv_retained_" + what);
  }

  std::unique_ptr<prefill::PrefillServer> prefill_;
  std::unique_ptr<decode::DecodeServer> first_;
  std::unique_ptr<decode::DecodeServer> second_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(RetentionTest, RetainedKvGivesAnotherDecodeWorkerTheSameTokensInEveryFormat) {
  StartWorkers(int64_t{64} << 20);
  for (const char* policy : {"dense", "diffkv", "shadowkv:rank=32,budget=128"}) {
    SCOPED_TRACE(policy);
    Request request = GreedyRequest(policy, 500, 20);
    request.kv_policy = policy;
    request.sampling.set_temperature(0.8f);
    request.sampling.set_seed(7);
    request.sampling.set_n(2);
    request.sampling.set_repetition_penalty(1.2f);
    const Outcome whole = Run(*first_, request, /*use_retained_kv=*/false);
    ASSERT_TRUE(whole.status.ok()) << whole.status;
    EXPECT_TRUE(whole.accepted.retains_kv());
    EXPECT_FALSE(whole.accepted.from_retained_kv());
    const double prefilled = PrefilledTokens();
    const Outcome again = Run(*second_, request, /*use_retained_kv=*/true);
    ASSERT_TRUE(again.status.ok()) << again.status;
    EXPECT_TRUE(again.accepted.retains_kv());
    EXPECT_TRUE(again.accepted.from_retained_kv());
    EXPECT_EQ(again.tokens, whole.tokens);
    EXPECT_EQ(again.committed.kv_wire_bytes(), whole.committed.kv_wire_bytes());
    EXPECT_EQ(again.committed.kv_logical_bytes(), whole.committed.kv_logical_bytes());
    EXPECT_EQ(PrefilledTokens(), prefilled) << "the prompt was computed again";
  }
  EXPECT_EQ(Lookups("hit"), 3);
  EXPECT_EQ(Retained("entries"), 3);
}

TEST_F(RetentionTest, ASequenceThatEndedWithItsFirstTokenEndsThatWayAgain) {
  StartWorkers(int64_t{64} << 20);
  Request request = GreedyRequest("r", 40, 1);
  const Outcome whole = Run(*first_, request, /*use_retained_kv=*/false);
  const Outcome again = Run(*second_, request, /*use_retained_kv=*/true);
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_EQ(again.tokens, whole.tokens);
  EXPECT_EQ(again.finished[0].size(), whole.finished[0].size());
}

TEST_F(RetentionTest, WhatIsNotThereIsComputedAgain) {
  StartWorkers(int64_t{64} << 20);
  Request request = GreedyRequest("r", 200, 4);
  ASSERT_TRUE(Run(*first_, request, /*use_retained_kv=*/false).status.ok());
  request.sampling.set_temperature(0.5f);  // other first tokens, perhaps
  EXPECT_FALSE(Run(*first_, request, /*use_retained_kv=*/true).accepted.from_retained_kv());
  ReleaseKv(channel_, "r");
  EXPECT_EQ(Retained("entries"), 0);
  EXPECT_EQ(Retained("bytes"), 0);
  const double prefilled = PrefilledTokens();
  const Outcome again = Run(*first_, request, /*use_retained_kv=*/true);
  EXPECT_TRUE(again.status.ok()) << again.status;
  EXPECT_FALSE(again.accepted.from_retained_kv());
  EXPECT_EQ(PrefilledTokens(), prefilled + 200);
  EXPECT_EQ(Lookups("miss"), 2);
}

// The prompt is computed to its end though its decode worker is gone, and waited for.
TEST_F(RetentionTest, ADecodeWorkerLostInThePromptCostsNoSecondPrefill) {
  StartWorkers(int64_t{256} << 20);
  const Request request = GreedyRequest("r", kLongPrompt, 6);
  Outcome outcome = EmptyOutcome(request);
  DecodeCall lost(ChannelTo(first_->worker()), request, /*with_prompt=*/false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(lost.ReadReserved(&reserved));
  PrefillCall prefill_call(channel_, request, reserved);
  ASSERT_TRUE(prefill_call.ReadUntilProgress());
  first_->Shutdown(absl::ZeroDuration());
  const Outcome again = Run(*second_, request, /*use_retained_kv=*/true);
  EXPECT_TRUE(again.status.ok()) << again.status;
  EXPECT_TRUE(again.accepted.from_retained_kv());
  EXPECT_EQ(again.tokens[0].size(), 6U);
  EXPECT_EQ(PrefilledTokens(), kLongPrompt);
  prefill_call.ReadAll(outcome);
  EXPECT_EQ(rpc::ReasonOf(outcome.status), rpc::reason::kDecodeLost) << outcome.status;
  EXPECT_TRUE(AtBaseline(prefill_->worker()));
}

TEST_F(RetentionTest, ACallThatWaitsForRetainedKvEndsWithItsClient) {
  StartWorkers(int64_t{256} << 20);
  const Request request = GreedyRequest("r", kLongPrompt, 6);
  DecodeCall decode_call(ChannelTo(first_->worker()), request, /*with_prompt=*/false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(decode_call.ReadReserved(&reserved));
  PrefillCall filling(channel_, request, reserved);
  ASSERT_TRUE(filling.ReadUntilProgress());
  PrefillCall waiting(channel_, request, reserved, 2, /*use_retained_kv=*/true);
  waiting.Cancel();
  EXPECT_EQ(waiting.Finish().code(), absl::StatusCode::kCancelled);
  filling.Cancel();
  EXPECT_EQ(filling.Finish().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(AtBaseline(prefill_->worker()));
  EXPECT_EQ(Retained("entries"), 0);
  EXPECT_EQ(Retained("bytes"), 0);
}

// Its reservation may be another request's by then.
TEST_F(RetentionTest, ACallThatEndedWhileItWaitedShipsNothing) {
  StartWorkers(int64_t{256} << 20);
  const Request request = GreedyRequest("r", kLongPrompt, 6);
  Outcome outcome = EmptyOutcome(request);
  DecodeCall decode_call(ChannelTo(first_->worker()), request, /*with_prompt=*/false);
  DecodeCall left_alone(ChannelTo(second_->worker()), request, /*with_prompt=*/false);
  worker::v1::Reserved reserved;
  worker::v1::Reserved untouched;
  ASSERT_TRUE(decode_call.ReadReserved(&reserved));
  ASSERT_TRUE(left_alone.ReadReserved(&untouched));
  PrefillCall filling(channel_, request, reserved);
  ASSERT_TRUE(filling.ReadUntilProgress());
  PrefillCall waiting(channel_, request, untouched, 1, /*use_retained_kv=*/true);
  absl::SleepFor(absl::Milliseconds(300));  // it waits by then; the prompt takes longer
  waiting.Cancel();
  EXPECT_EQ(waiting.Finish().code(), absl::StatusCode::kCancelled);
  filling.ReadAll(outcome);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  decode_call.ReadAll(outcome);
  EXPECT_EQ(outcome.tokens[0].size(), 6U);
  EXPECT_FALSE(Eventually([&] { return Gauge(second_->worker(), "baton_kv_leases_active") == 0; },
                          /*timeout=*/absl::Seconds(1)))
      << "decode committed what nobody waits for";
}

// Nobody says that the request has ended: its router died.
TEST_F(RetentionTest, RetainedKvGoesWithItsLease) {
  StartWorkers(int64_t{64} << 20, absl::Seconds(1));
  ASSERT_TRUE(Run(*first_, GreedyRequest("r", 40, 2), /*use_retained_kv=*/false).status.ok());
  EXPECT_TRUE(Eventually([&] { return Retained("entries") == 0; }));
  EXPECT_EQ(Retained("bytes"), 0);
}

TEST_F(RetentionTest, WithoutABudgetNothingIsRetained) {
  StartWorkers(0);
  const Outcome outcome = Run(*first_, GreedyRequest("r", 40, 2), /*use_retained_kv=*/false);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_FALSE(outcome.accepted.retains_kv());
  EXPECT_EQ(Retained("entries"), 0);
}

}  // namespace
}  // namespace baton
