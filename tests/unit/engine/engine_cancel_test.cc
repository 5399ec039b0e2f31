// Cancelling at any moment returns every page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/engine/engine_harness.h"

namespace baton::engine {
namespace {

constexpr int kStorm = 1000;

TEST(EngineCancelTest, UnknownAndEndedIdsAreIgnored) {
  EngineHarness harness(TestOptions(Role::kBoth));
  harness.engine->Cancel("nobody", absl::CancelledError("x"));
  const auto listener = harness.Submit("a", MakePrompt(5), GreedyParams(2));
  ASSERT_TRUE(listener->AwaitDone());
  harness.engine->Cancel("a", absl::CancelledError("x"));
  harness.engine->Cancel("a", absl::CancelledError("x"));
  const auto again = harness.Submit("a", MakePrompt(5), GreedyParams(2));
  ASSERT_TRUE(again->AwaitDone());
  EXPECT_TRUE(again->status().ok());
  EXPECT_EQ(listener->errors(), 0);
}

TEST(EngineCancelTest, CancelWhileQueuedPrefillingAndDecoding) {
  EngineHarness harness(TestOptions(Role::kBoth, 12));
  harness.control->Hold();
  const auto running = harness.Submit("a", MakePrompt(12), GreedyParams(4));
  harness.control->AwaitHeld();
  const auto queued = harness.Submit("b", MakePrompt(12), GreedyParams(4));
  harness.engine->Cancel("b", absl::OkStatus());
  ASSERT_TRUE(queued->AwaitDone());
  EXPECT_EQ(queued->status().code(), absl::StatusCode::kCancelled);
  harness.engine->Cancel("a", absl::AbortedError("x"));
  ASSERT_TRUE(running->AwaitDone());
  EXPECT_EQ(running->status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(harness.engine->load().pages_free, 0) << "the step in flight still refers to them";
  harness.control->Release();
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));

  EngineHarness decoding(TestOptions(Role::kBoth));
  SamplingParams params = GreedyParams(500);
  params.n = 3;
  params.temperature = 1.0f;
  const auto listener = decoding.Submit("c", MakePrompt(5), params);
  ASSERT_TRUE(listener->AwaitTokens(10));
  decoding.engine->Cancel("c", absl::CancelledError("x"));
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_TRUE(Eventually([&] { return decoding.AtBaseline(); }));
  EXPECT_EQ(listener->errors(), 0);
}

// A request that is cancelled before its copies ran must not leave them behind.
TEST(EngineCancelTest, CancelBetweenTheFirstTokensAndTheirFirstStep) {
  EngineHarness harness(TestOptions(Role::kBoth));
  for (int round = 0; round < 50; ++round) {
    SamplingParams params = GreedyParams(30);
    params.n = 4;
    params.temperature = 1.0f;
    const auto listener = harness.Submit("n", MakePrompt(6), params);
    ASSERT_TRUE(listener->AwaitTokens(1));
    harness.engine->Cancel("n", absl::CancelledError("x"));
    ASSERT_TRUE(listener->AwaitDone());
  }
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

class CancelStorm {
 public:
  explicit CancelStorm(uint32_t seed) : random_(seed) {}

  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  SamplingParams Params() {
    SamplingParams params = GreedyParams(Draw(1, 60));
    params.temperature = 1.0f;
    params.seed = random_();
    params.n = Draw(1, 3);
    return params;
  }
  // Lets the engine get anywhere between nothing and several steps further.
  void Pause() {
    if (Draw(0, 3) == 0) {
      absl::SleepFor(absl::Microseconds(Draw(0, 400)));
    }
  }
  template <typename T>
  T TakeAny(std::vector<T>& values) {
    const auto at = static_cast<size_t>(Draw(0, static_cast<int>(values.size()) - 1));
    T value = values[at];
    values[at] = values.back();
    values.pop_back();
    return value;
  }

 private:
  std::mt19937 random_;
};

// Catalogue T4, the engine alone: a thousand requests in every role.
TEST(EngineCancelTest, StormOnTheBothRoleReturnsEveryPage) {
  const uint32_t seed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << seed << "; --gtest_filter=*StormOnTheBoth*");
  CancelStorm storm(seed);
  EngineHarness harness(TestOptions(Role::kBoth, 600));
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  std::vector<std::string> open;
  for (int i = 0; i < kStorm; ++i) {
    open.push_back(absl::StrCat("r", i));
    listeners.push_back(
        harness.Submit(open.back(), MakePrompt(storm.Draw(1, 90), i), storm.Params()));
    storm.Pause();
    if (open.size() > 40) {
      harness.engine->Cancel(storm.TakeAny(open), absl::CancelledError("storm"));
    }
  }
  while (!open.empty()) {
    harness.engine->Cancel(storm.TakeAny(open), absl::CancelledError("storm"));
    storm.Pause();
  }
  for (const auto& listener : listeners) {
    ASSERT_TRUE(listener->AwaitDone());
    ASSERT_TRUE(listener->status().ok() || absl::IsCancelled(listener->status()))
        << listener->status();
    ASSERT_EQ(listener->errors(), 0);
  }
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

TEST(EngineCancelTest, StormOnThePrefillRoleReturnsEveryPage) {
  const uint32_t seed = 12;
  SCOPED_TRACE(testing::Message() << "seed " << seed << "; --gtest_filter=*StormOnThePrefill*");
  CancelStorm storm(seed);
  EngineHarness harness(TestOptions(Role::kPrefill, 600));
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  std::vector<std::shared_ptr<SinkLog>> logs;
  std::vector<std::shared_ptr<SinkLog>> slow;
  std::vector<std::string> open;
  for (int i = 0; i < kStorm; ++i) {
    const bool at_once = storm.Draw(0, 1) == 0;
    logs.push_back(std::make_shared<SinkLog>(at_once));
    if (!at_once) {
      slow.push_back(logs.back());
    }
    open.push_back(absl::StrCat("r", i));
    listeners.push_back(
        harness.Submit(open.back(), MakePrompt(storm.Draw(1, 90), i), storm.Params(), logs.back()));
    storm.Pause();
    if (open.size() > 20) {
      harness.engine->Cancel(storm.TakeAny(open), absl::CancelledError("storm"));
    }
    if (slow.size() > 10) {
      const auto log = storm.TakeAny(slow);
      log->Answer(absl::OkStatus(), 1);
      slow.push_back(log);  // it may not have been asked yet
    }
  }
  while (!open.empty()) {
    harness.engine->Cancel(storm.TakeAny(open), absl::CancelledError("storm"));
  }
  EXPECT_TRUE(Eventually([&] {
    for (const auto& log : slow) {
      log->Answer(absl::UnavailableError("peer left"), 1);
    }
    return harness.AtBaseline();
  }));
  for (size_t i = 0; i < listeners.size(); ++i) {
    ASSERT_TRUE(listeners[i]->AwaitDone());
    ASSERT_EQ(listeners[i]->errors(), 0);
    ASSERT_TRUE(logs[i]->AwaitEnd()) << "every sink is committed or aborted";
    ASSERT_EQ(logs[i]->errors(), 0);
  }
}

TEST(EngineCancelTest, StormOnReservationsReturnsEveryPage) {
  const uint32_t seed = 13;
  SCOPED_TRACE(testing::Message() << "seed " << seed << "; --gtest_filter=*StormOnReservations*");
  CancelStorm storm(seed);
  EngineHarness harness(TestOptions(Role::kDecode, 600));
  std::vector<std::shared_ptr<RecordingListener>> granted;
  int refused = 0;
  for (int i = 0; i < kStorm; ++i) {
    const auto listener = std::make_shared<RecordingListener>();
    const SamplingParams params = storm.Params();
    const std::string id = absl::StrCat("r", i);
    const auto grant = harness.Reserve(id, storm.Draw(1, 60), params, listener);
    if (!grant.ok()) {
      ASSERT_EQ(grant.status().code(), absl::StatusCode::kResourceExhausted) << grant.status();
      ++refused;
      harness.clock.Advance(absl::Seconds(storm.Draw(0, 6)));  // some leases end
      continue;
    }
    granted.push_back(listener);
    if (storm.Draw(0, 1) == 0) {
      const auto ignore = [](const absl::Status&) {};
      harness.engine->BeginAttempt(grant->reservation_id, grant->epoch, 1, ignore);
      CommitInfo info;
      info.first_tokens.resize(static_cast<size_t>(params.n));
      // Pages hold what their last owner left: a step that reads them fails, which is the point.
      harness.engine->Commit(grant->reservation_id, grant->epoch, 1, std::move(info), ignore);
    }
    storm.Pause();
    if (storm.Draw(0, 2) != 0) {
      harness.engine->Cancel(id, absl::CancelledError("storm"));
    }
  }
  EXPECT_GT(refused, 0);
  harness.clock.Advance(absl::Seconds(11));
  for (const auto& listener : granted) {
    ASSERT_TRUE(listener->AwaitDone());
    ASSERT_EQ(listener->errors(), 0);
  }
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
  EXPECT_EQ(harness.reservations.released().size(), granted.size());
}

}  // namespace
}  // namespace baton::engine
