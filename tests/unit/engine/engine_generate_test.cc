// Role both: prefill and decode in one pool.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/engine/sampling_params.h"
#include "tests/unit/engine/engine_harness.h"
#include "tests/unit/engine/fake_model.h"
#include "tests/unit/engine/recording_listener.h"

namespace baton::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(EngineGenerateTest, DeliversTheTokensOfTheModel) {
  EngineHarness harness(TestOptions(Role::kBoth));
  const auto prompt = MakePrompt(21);
  const auto listener = harness.Submit("a", prompt, GreedyParams(13));
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_TRUE(listener->status().ok()) << listener->status();
  EXPECT_EQ(listener->tokens(), ExpectedTokens(prompt, GreedyParams(13)));
  EXPECT_EQ(listener->finish()->reason, FinishReason::kLength);
  EXPECT_THAT(listener->progress(), ElementsAre(16, 21));
  EXPECT_EQ(listener->errors(), 0);
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

// Catalogue T24
TEST(EngineGenerateTest, MaxTokensIsExact) {
  EngineHarness harness(TestOptions(Role::kBoth));
  for (int32_t max_tokens : {1, 2, 3, 4, 5, 17}) {
    const auto listener =
        harness.Submit(absl::StrCat("m", max_tokens), MakePrompt(8), GreedyParams(max_tokens));
    ASSERT_TRUE(listener->AwaitDone());
    EXPECT_THAT(listener->tokens(), SizeIs(static_cast<size_t>(max_tokens)));
    EXPECT_EQ(listener->stats().completion_tokens, max_tokens);
    EXPECT_EQ(listener->finish()->reason, FinishReason::kLength);
    EXPECT_FALSE(listener->finish()->stop_token_id.has_value());
  }
}

TEST(EngineGenerateTest, ResultsDoNotDependOnTheBatch) {
  EngineOptions options = TestOptions(Role::kBoth);
  options.max_running_sequences = 16;
  EngineHarness harness(options);
  std::map<int, std::shared_ptr<RecordingListener>> listeners;
  const auto params = [](int i) {
    SamplingParams sampling = GreedyParams(1 + i % 9);
    sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    sampling.seed = static_cast<uint64_t>(i);
    sampling.repetition_penalty = i % 3 == 0 ? 1.3f : 1.0f;
    sampling.frequency_penalty = i % 5 == 0 ? 0.5f : 0.0f;
    return sampling;
  };
  for (int i = 0; i < 100; ++i) {
    listeners[i] = harness.Submit(absl::StrCat("r", i), MakePrompt(1 + i * 3 % 50, i), params(i));
  }
  for (const auto& [i, listener] : listeners) {
    ASSERT_TRUE(listener->AwaitDone());
    EXPECT_TRUE(listener->status().ok()) << listener->status();
    EXPECT_EQ(listener->tokens(), ExpectedTokens(MakePrompt(1 + i * 3 % 50, i), params(i)))
        << "request " << i;
  }
  bool mixed = false;
  for (const FakeStep& step : harness.control->steps()) {
    EXPECT_LE(step.rows, options.step_token_budget);
    EXPECT_LE(step.logit_rows.size(), static_cast<size_t>(options.max_running_sequences));
    mixed |= step.sequences > 2 && step.rows > step.sequences;
  }
  EXPECT_TRUE(mixed) << "no step held several sequences";
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

TEST(EngineGenerateTest, ResultsDoNotDependOnChunksAndBudgets) {
  const auto prompt = MakePrompt(50);
  SamplingParams params = GreedyParams(6);
  params.temperature = 0.8f;
  params.seed = 99;
  for (const auto& [budget, chunk] : {std::pair{1, 1}, {3, 7}, {64, 4}, {64, 50}, {128, 128}}) {
    EngineOptions options = TestOptions(Role::kBoth);
    options.step_token_budget = budget;
    options.prefill_chunk_tokens = chunk;
    EngineHarness harness(options);
    const auto first = harness.Submit("a", prompt, params);
    const auto second = harness.Submit("b", MakePrompt(9), GreedyParams(6));
    ASSERT_TRUE(first->AwaitDone());
    ASSERT_TRUE(second->AwaitDone());
    EXPECT_EQ(first->tokens(), ExpectedTokens(prompt, params)) << budget << " " << chunk;
    EXPECT_EQ(second->tokens(), ExpectedTokens(MakePrompt(9), GreedyParams(6)));
  }
}

TEST(EngineGenerateTest, SequencesShareThePromptAndDivergeOnTheirOwnPages) {
  for (const int32_t prompt_tokens : {1, 3, 4, 8, 10, 23}) {
    EngineHarness harness(TestOptions(Role::kBoth));
    const auto prompt = MakePrompt(prompt_tokens);
    SamplingParams params = GreedyParams(9);
    params.temperature = 1.5f;
    params.seed = 4;
    params.n = 5;
    const auto listener = harness.Submit("n", prompt, params);
    ASSERT_TRUE(listener->AwaitDone());
    ASSERT_TRUE(listener->status().ok()) << listener->status();
    for (int32_t i = 0; i < 5; ++i) {
      EXPECT_EQ(listener->tokens(i), ExpectedTokens(prompt, params, i)) << i;
    }
    EXPECT_NE(listener->tokens(0), listener->tokens(1));
    EXPECT_EQ(listener->stats().completion_tokens, 45);
    EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
  }
}

TEST(EngineGenerateTest, StopTokenIsCountedButNotDelivered) {
  EngineHarness harness(TestOptions(Role::kBoth));
  const auto prompt = MakePrompt(6);
  const auto unstopped = ExpectedTokens(prompt, GreedyParams(20));
  SamplingParams params = GreedyParams(20);
  params.stop_token_ids = {unstopped[4]};
  const auto expected = ExpectedTokens(prompt, params);
  const auto listener = harness.Submit("s", prompt, params);
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_EQ(listener->tokens(), expected);
  EXPECT_LT(listener->tokens().size(), 5u);
  EXPECT_EQ(listener->finish()->reason, FinishReason::kStop);
  EXPECT_EQ(listener->finish()->stop_token_id, unstopped[4]);
  EXPECT_EQ(listener->stats().completion_tokens, static_cast<int64_t>(expected.size()) + 1);
}

// Catalogue T25
TEST(EngineGenerateTest, StopIdAsFirstTokenEndsWithoutADecodeStep) {
  EngineHarness harness(TestOptions(Role::kBoth));
  harness.control->Prefer(7);
  SamplingParams params = GreedyParams(20);
  params.stop_token_ids = {7};
  const auto listener = harness.Submit("s", MakePrompt(6), params);
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_TRUE(listener->status().ok());
  EXPECT_THAT(listener->tokens(), IsEmpty());
  EXPECT_EQ(listener->finish()->stop_token_id, 7);
  EXPECT_EQ(listener->stats().completion_tokens, 1);
  EXPECT_THAT(harness.control->steps(), SizeIs(1));
}

TEST(EngineGenerateTest, MinTokensHoldsStopIdsBack) {
  EngineHarness harness(TestOptions(Role::kBoth));
  harness.control->Prefer(7);
  for (const int32_t min_tokens : {1, 2, 3}) {
    SamplingParams params = GreedyParams(20);
    params.stop_token_ids = {7};
    params.min_tokens = min_tokens;
    const auto listener = harness.Submit(absl::StrCat("s", min_tokens), MakePrompt(6), params);
    ASSERT_TRUE(listener->AwaitDone());
    EXPECT_THAT(listener->tokens(), SizeIs(static_cast<size_t>(min_tokens)));
    EXPECT_EQ(listener->finish()->stop_token_id, 7);
    EXPECT_EQ(listener->stats().completion_tokens, min_tokens + 1);
  }
}

TEST(EngineGenerateTest, LogprobsComeWithTokens) {
  EngineHarness harness(TestOptions(Role::kBoth));
  SamplingParams params = GreedyParams(3);
  params.logprobs = 2;
  const auto listener = harness.Submit("l", MakePrompt(6), params);
  ASSERT_TRUE(listener->AwaitDone());
  ASSERT_THAT(listener->outputs(), SizeIs(3));
  for (const TokenOutput& output : listener->outputs()) {
    ASSERT_THAT(output.top_logprobs, SizeIs(2));
    EXPECT_EQ(output.top_logprobs[0].first, output.token_id);
    EXPECT_EQ(output.top_logprobs[0].second, output.logprob);
    EXPECT_LT(output.logprob, 0.0f);
  }
}

TEST(EngineGenerateTest, StatsAccountForTheRequest) {
  EngineHarness harness(TestOptions(Role::kBoth));
  harness.control->Hold();
  const auto listener = harness.Submit("a", MakePrompt(10), GreedyParams(1));
  harness.control->AwaitHeld();
  harness.clock.Advance(absl::Seconds(3));
  harness.control->Release();
  ASSERT_TRUE(listener->AwaitDone());
  const RequestStats stats = listener->stats();
  EXPECT_EQ(stats.prompt_tokens, 10);
  EXPECT_EQ(stats.prefill_time, absl::Seconds(3));
  EXPECT_EQ(stats.queue_time, absl::ZeroDuration());
  EXPECT_EQ(stats.kv_logical_bytes, 10 * 3 * 2 * 2 * 4 * 2);
  EXPECT_EQ(stats.kv_wire_bytes, 0);
  EXPECT_EQ(stats.kv_resident_bytes, 3 * 3 * 256);  // 3 layers, 3 pages of 256 bytes
}

TEST(EngineGenerateTest, AFailedStepEndsItsRequestsAndTheEngineLivesOn) {
  EngineHarness harness(TestOptions(Role::kBoth));
  harness.control->FailNext(absl::ResourceExhaustedError("device lost its mind"));
  const auto failed = harness.Submit("a", MakePrompt(10), GreedyParams(4));
  ASSERT_TRUE(failed->AwaitDone());
  EXPECT_EQ(failed->status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(failed->status().message()), HasSubstr("device lost its mind"));
  const auto next = harness.Submit("a", MakePrompt(10), GreedyParams(4));
  ASSERT_TRUE(next->AwaitDone());
  EXPECT_EQ(next->tokens(), ExpectedTokens(MakePrompt(10), GreedyParams(4)));
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

// For each token of a decode step: whether the model is at the step behind it when the listener has
// looked for a while.
class LookingListener final : public RequestListener {
 public:
  explicit LookingListener(std::shared_ptr<FakeModelControl> control)
      : control_(std::move(control)) {}

  void OnTokens(int32_t, std::span<const TokenOutput>) override {
    ++tokens_;
    if (tokens_ > 1 && tokens_ < kTokens) {  // the first one comes while its step is at work
      EXPECT_TRUE(Eventually([&] { return control_->steps().size() > tokens_; }));
    }
  }
  void OnFinished(int32_t, const SequenceFinish&) override {}
  void OnDone(const absl::Status& status, const RequestStats&) override {
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(tokens_, kTokens);
    done_.Notify();
  }
  void AwaitDone() { done_.WaitForNotification(); }

  static constexpr size_t kTokens = 5;

 private:
  const std::shared_ptr<FakeModelControl> control_;
  size_t tokens_ = 0;
  absl::Notification done_;
};

TEST(EngineGenerateTest, TheNextStepDoesNotWaitForListeners) {
  EngineHarness harness(TestOptions(Role::kBoth));
  const auto listener = std::make_shared<LookingListener>(harness.control);
  GenerateRequest request;
  request.request_id = "a";
  request.prompt = MakePrompt(8);
  request.sampling = GreedyParams(LookingListener::kTokens);
  ASSERT_TRUE(harness.engine->Submit(std::move(request), listener).ok());
  listener->AwaitDone();
}

TEST(EngineGenerateTest, PromptsWaitForPagesInOrderAndAllComplete) {
  // Each request needs ceil((10 + 6) / 4) = 4 pages in 3 layers; two fit at a time.
  EngineHarness harness(TestOptions(Role::kBoth, 27));
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  listeners.reserve(12);
  for (int i = 0; i < 12; ++i) {
    listeners.push_back(harness.Submit(absl::StrCat("r", i), MakePrompt(10, i), GreedyParams(6)));
  }
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(listeners[static_cast<size_t>(i)]->AwaitDone());
    EXPECT_EQ(listeners[static_cast<size_t>(i)]->tokens(),
              ExpectedTokens(MakePrompt(10, i), GreedyParams(6)));
  }
  for (const FakeStep& step : harness.control->steps()) {
    EXPECT_LE(step.sequences, 2);
  }
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

}  // namespace
}  // namespace baton::engine
