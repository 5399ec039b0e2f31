// Simulated workers behave on the wire as real ones do, and measure their stages.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "prometheus/metric_family.h"
#include "prometheus/metric_type.h"

#include "common/engine/engine.h"
#include "common/model/simulation.h"
#include "common/worker/worker.h"
#include "common/worker/worker_options.h"
#include "proto/baton/worker/v1/decode.pb.h"
#include "tests/integration/worker/worker_pair.h"

namespace baton {
namespace {

constexpr char kSwiftKvModel[] = "/tests/data/models/tiny-llama-needle-swiftkv-l6-across2";

// Steps long enough to be interrupted, short enough not to be waited for.
worker::WorkerOptions SimulatedOptions(engine::Role role) {
  worker::WorkerOptions options = TinyOptions(role);
  options.simulation = model::Simulation{.prefill_step = absl::Milliseconds(1),
                                         .prefill_tokens_per_second = 100'000,
                                         .decode_step = absl::Milliseconds(1),
                                         .decode_sequence = absl::Microseconds(10)};
  return options;
}

// Observations of every stage that a worker has measured.
std::map<std::string, uint64_t> StageCounts(worker::Worker& worker) {
  std::map<std::string, uint64_t> counts;
  for (const prometheus::MetricFamily& family : worker.metrics().registry().Collect()) {
    if (family.name != "baton_stage_duration_seconds") {
      continue;
    }
    for (const prometheus::ClientMetric& metric : family.metric) {
      for (const prometheus::ClientMetric::Label& label : metric.label) {
        if (label.name == "stage") {
          counts[label.value] = metric.histogram.sample_count;
        }
      }
    }
  }
  return counts;
}

class SimulateTest : public testing::Test {
 protected:
  void Start(const worker::WorkerOptions& prefill, const worker::WorkerOptions& decode) {
    prefill_ = StartPrefill(prefill);
    decode_ = StartDecode(decode);
    ASSERT_TRUE(prefill_ != nullptr && decode_ != nullptr);
  }
  void SetUp() override {
    Start(SimulatedOptions(engine::Role::kPrefill), SimulatedOptions(engine::Role::kDecode));
  }
  Outcome Split(const Request& request) {
    return RunSplit(ChannelTo(prefill_->worker()), ChannelTo(decode_->worker()), request);
  }

  std::unique_ptr<prefill::PrefillServer> prefill_;
  std::unique_ptr<decode::DecodeServer> decode_;
};

TEST_F(SimulateTest, BytesAndCountsAreThoseOfRealWorkers) {
  const auto real_prefill = StartPrefill(TinyOptions(engine::Role::kPrefill));
  const auto real_decode = StartDecode(TinyOptions(engine::Role::kDecode));
  ASSERT_TRUE(real_prefill != nullptr && real_decode != nullptr);
  const Request request = GreedyRequest("same", 300, 20);
  const Outcome simulated = Split(request);
  const Outcome real =
      RunSplit(ChannelTo(real_prefill->worker()), ChannelTo(real_decode->worker()), request);
  ASSERT_TRUE(simulated.status.ok()) << simulated.status;
  ASSERT_TRUE(real.status.ok()) << real.status;
  EXPECT_EQ(simulated.tokens[0].size(), 20U);
  EXPECT_EQ(simulated.usage.completion_tokens(), 20U);
  EXPECT_EQ(simulated.finished[0].at(0).reason(), worker::v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(simulated.committed.kv_wire_bytes(), real.committed.kv_wire_bytes());
  EXPECT_EQ(simulated.committed.kv_logical_bytes(), real.committed.kv_logical_bytes());
  EXPECT_EQ(simulated.usage.kv_resident_bytes(), real.usage.kv_resident_bytes());
  EXPECT_TRUE(AtBaseline(prefill_->worker()));
  EXPECT_TRUE(AtBaseline(decode_->worker()));
}

TEST_F(SimulateTest, TokensDependOnTheSeedAndNotOnWhoDecodes) {
  const auto both = StartDecode(SimulatedOptions(engine::Role::kBoth));
  ASSERT_NE(both, nullptr);
  Request request = GreedyRequest("seed", 50, 30);
  request.sampling.set_n(2);
  request.sampling.set_seed(5);
  const Outcome split = Split(request);
  ASSERT_TRUE(split.status.ok()) << split.status;
  EXPECT_EQ(split.tokens, RunBoth(ChannelTo(both->worker()), request).tokens);
  EXPECT_NE(split.tokens[0], split.tokens[1]);
  request.sampling.set_seed(6);
  EXPECT_NE(split.tokens, Split(request).tokens);
}

TEST_F(SimulateTest, EveryFormatIsHandedOver) {
  for (const char* policy : {"dense", "diffkv", "shadowkv:rank=8,budget=8,outliers=1,local=1"}) {
    SCOPED_TRACE(policy);
    Request request = GreedyRequest("formats", 400, 10);
    request.kv_policy = policy;
    const Outcome outcome = Split(request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.tokens[0].size(), 10U);
  }
  EXPECT_TRUE(AtBaseline(decode_->worker()));
}

TEST_F(SimulateTest, HiddenStatesAreHandedOverAndExpanded) {
  worker::WorkerOptions options = SimulatedOptions(engine::Role::kPrefill);
  options.model_dir = std::string(BATON_SOURCE_DIR) + kSwiftKvModel;
  options.pools.hidden = int64_t{16} << 20;
  worker::WorkerOptions decode_options = options;
  decode_options.engine.role = engine::Role::kDecode;
  Start(options, decode_options);
  for (const char* policy : {"hidden+dense", "hidden+diffkv"}) {
    SCOPED_TRACE(policy);
    Request request = GreedyRequest("hidden", 300, 10);
    request.kv_policy = policy;
    const Outcome outcome = Split(request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.tokens[0].size(), 10U);
  }
  EXPECT_EQ(StageCounts(decode_->worker())["decompress"], 2U);
}

TEST_F(SimulateTest, AConversationGoesOnFromKeptKv) {
  for (const char* policy : {"dense", "diffkv", "shadowkv:rank=8,budget=8,outliers=1,local=1"}) {
    SCOPED_TRACE(policy);
    Request first = GreedyRequest("turn-1", 100, 10);
    first.session_id = absl::StrCat("talk-", policy);
    first.kv_policy = policy;
    const Outcome begun = Split(first);
    ASSERT_TRUE(begun.status.ok()) << begun.status;
    Request second = first;
    second.id = "turn-2";
    for (const uint32_t token : begun.tokens[0]) {
      second.prompt.push_back(static_cast<int32_t>(token));
    }
    second.prompt.push_back(7);
    const Outcome went_on = Split(second);
    ASSERT_TRUE(went_on.status.ok()) << went_on.status;
    EXPECT_EQ(went_on.tokens[0].size(), 10U);
    EXPECT_EQ(went_on.usage.cached_tokens(), 109U) << "all but the last token, which no step took";
  }
  EXPECT_TRUE(Eventually([&] { return decode_->worker().engine().load().kept_sessions == 3; }));
}

TEST_F(SimulateTest, CancelsAndDeadlinesReturnEveryPage) {
  Request late = GreedyRequest("late", 100, 2000);
  late.deadline = absl::Now() + absl::Milliseconds(200);
  EXPECT_EQ(Split(late).status.code(), absl::StatusCode::kDeadlineExceeded);
  const Request request = GreedyRequest("cancelled", 6000, 2000);
  DecodeCall decode_call(ChannelTo(decode_->worker()), request, /*with_prompt=*/false);
  worker::v1::Reserved reserved;
  ASSERT_TRUE(decode_call.ReadReserved(&reserved));
  PrefillCall prefill_call(ChannelTo(prefill_->worker()), request, reserved);
  ASSERT_TRUE(prefill_call.ReadUntilProgress());
  prefill_call.Cancel();
  decode_call.Cancel();
  EXPECT_TRUE(AtBaseline(prefill_->worker()));
  EXPECT_TRUE(AtBaseline(decode_->worker()));
}

TEST_F(SimulateTest, ASimulatedWorkerAndARealOneDoNotPair) {
  decode_ = StartDecode(TinyOptions(engine::Role::kDecode));
  ASSERT_NE(decode_, nullptr);
  EXPECT_EQ(Split(GreedyRequest("mixed", 50, 4)).status.code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(SimulateTest, EveryStageOfAHandOffIsMeasuredOnce) {
  ASSERT_TRUE(Split(GreedyRequest("dense", 300, 8)).status.ok());
  Request encoded = GreedyRequest("diffkv", 300, 8);
  encoded.kv_policy = "diffkv";
  ASSERT_TRUE(Split(encoded).status.ok());
  ASSERT_TRUE(Split(GreedyRequest("one-token", 50, 1)).status.ok());
  EXPECT_TRUE(AtBaseline(prefill_->worker()) && AtBaseline(decode_->worker()));
  const std::map<std::string, uint64_t> prefill = {
      {"prefill_queue", 3}, {"prefill_forward", 3}, {"compress", 1}, {"transfer", 3}};
  const std::map<std::string, uint64_t> decode = {
      {"decompress", 1}, {"decode_queue", 2}, {"first_decode_step", 2}, {"decode", 3}};
  EXPECT_EQ(StageCounts(prefill_->worker()), prefill);
  EXPECT_EQ(StageCounts(decode_->worker()), decode);
}

}  // namespace
}  // namespace baton
