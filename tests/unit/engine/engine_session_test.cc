// Turns of conversations: KV that is kept from one request to the next.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/engine/sampling_params.h"
#include "tests/unit/engine/await_grant.h"
#include "tests/unit/engine/copy_sink.h"
#include "tests/unit/engine/engine_harness.h"
#include "tests/unit/engine/eventually.h"
#include "tests/unit/engine/fake_model.h"
#include "tests/unit/engine/recording_listener.h"

namespace baton::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<int32_t> Joined(std::vector<int32_t> first, const std::vector<int32_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// One conversation: every turn's prompt is what was said before and something new.
class Conversation {
 public:
  Conversation(EngineHarness& harness, std::string session)
      : harness_(harness), session_(std::move(session)) {}

  // Asks with `added` new tokens; returns how many prompt tokens were cached. The answer has to be
  // that of a request without a past.
  int64_t Turn(int32_t added, const SamplingParams& sampling) {
    prompt_ = Joined(prompt_, MakePrompt(added, ++turns_));
    const auto listener = std::make_shared<RecordingListener>();
    EXPECT_TRUE(Ask(prompt_, sampling, listener).ok());
    EXPECT_TRUE(listener->AwaitDone());
    EXPECT_TRUE(listener->status().ok()) << listener->status();
    EXPECT_EQ(listener->tokens(), ExpectedTokens(prompt_, sampling)) << "turn " << turns_;
    EXPECT_EQ(listener->errors(), 0);
    EXPECT_EQ(listener->stats().prompt_tokens, static_cast<int64_t>(prompt_.size()));
    prompt_ = Joined(prompt_, listener->tokens());
    EXPECT_TRUE(Eventually([&] { return harness_.engine->load().kept_sessions > 0; }));
    return listener->stats().cached_tokens;
  }

  absl::Status Ask(std::vector<int32_t> prompt,
                   const SamplingParams& sampling,
                   std::shared_ptr<RecordingListener> listener) {
    GenerateRequest request;
    request.request_id = absl::StrCat(session_, "-", ++requests_);
    request.prompt = std::move(prompt);
    request.sampling = sampling;
    request.session_id = session_;
    return harness_.engine->Submit(std::move(request), std::move(listener));
  }

  std::vector<int32_t>& prompt() { return prompt_; }

 private:
  EngineHarness& harness_;
  const std::string session_;
  std::vector<int32_t> prompt_;
  int32_t turns_ = 0;
  int requests_ = 0;
};

int64_t RowsOf(const std::vector<FakeStep>& steps) {
  int64_t rows = 0;
  for (const FakeStep& step : steps) {
    rows += step.rows;
  }
  return rows;
}

TEST(EngineSessionTest, ALaterTurnComputesOnlyWhatItAdds) {
  EngineHarness harness(TestOptions(Role::kBoth));
  Conversation talk(harness, "talk");
  EXPECT_EQ(talk.Turn(21, GreedyParams(6)), 0);
  int64_t rows = RowsOf(harness.control->steps());
  for (const int32_t added : {1, 3, 4, 17, 40, 2}) {
    const auto before = static_cast<int64_t>(talk.prompt().size());
    // The last token of an answer is nobody's input until the next turn.
    EXPECT_EQ(talk.Turn(added, GreedyParams(5)), before - 1);
    const int64_t now = RowsOf(harness.control->steps());
    EXPECT_EQ(now - rows, 1 + added + 4) << "the old token, the new ones, four of the answer";
    rows = now;
  }
  EXPECT_EQ(harness.engine->load().kept_sessions, 1);
}

TEST(EngineSessionTest, AnswersDoNotDependOnChunks) {
  for (const int32_t chunk : {1, 3, 7, 64}) {
    EngineOptions options = TestOptions(Role::kBoth);
    options.prefill_chunk_tokens = chunk;
    EngineHarness harness(options);
    Conversation talk(harness, "talk");
    talk.Turn(10, GreedyParams(3));
    EXPECT_GT(talk.Turn(30, GreedyParams(3)), 0) << "chunk " << chunk;
  }
}

TEST(EngineSessionTest, SamplingAndPenaltiesAreThoseOfTheWholePrompt) {
  EngineHarness harness(TestOptions(Role::kBoth));
  Conversation talk(harness, "talk");
  SamplingParams sampling = GreedyParams(9);
  sampling.temperature = 1.0f;
  sampling.seed = 77;
  sampling.repetition_penalty = 1.4f;
  sampling.frequency_penalty = 0.3f;
  talk.Turn(20, sampling);
  EXPECT_GT(talk.Turn(5, sampling), 0);
}

TEST(EngineSessionTest, APromptThatDiffersStartsAfresh) {
  EngineHarness harness(TestOptions(Role::kBoth));
  Conversation talk(harness, "talk");
  talk.Turn(20, GreedyParams(4));
  talk.prompt()[3] = (talk.prompt()[3] + 1) % FakeModel::kVocab;
  EXPECT_EQ(talk.Turn(5, GreedyParams(4)), 0);
  EXPECT_GT(talk.Turn(5, GreedyParams(4)), 0) << "what differed is the new past";
}

TEST(EngineSessionTest, TheSamePromptAgainStartsAfreshBecauseNothingIsNew) {
  EngineHarness harness(TestOptions(Role::kBoth));
  Conversation talk(harness, "talk");
  talk.Turn(20, GreedyParams(1));  // one token of answer: exactly the prompt's KV is kept
  const auto listener = std::make_shared<RecordingListener>();
  ASSERT_TRUE(talk.Ask(MakePrompt(20, 1), GreedyParams(4), listener).ok());
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_EQ(listener->stats().cached_tokens, 0);
  EXPECT_EQ(listener->tokens(), ExpectedTokens(MakePrompt(20, 1), GreedyParams(4)));
}

TEST(EngineSessionTest, RequestsWithoutASessionKeepNothing) {
  EngineHarness harness(TestOptions(Role::kBoth));
  ASSERT_TRUE(harness.Submit("a", MakePrompt(20), GreedyParams(3))->AwaitDone());
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
  EXPECT_EQ(harness.engine->load().kept_sessions, 0);
  EXPECT_EQ(harness.engine->load().kept_bytes, 0);
}

TEST(EngineSessionTest, ACancelledAnswerIsKeptAsFarAsItGot) {
  EngineHarness harness(TestOptions(Role::kBoth));
  Conversation talk(harness, "talk");
  const std::vector<int32_t> prompt = MakePrompt(20, 9);
  const auto listener = std::make_shared<RecordingListener>();
  ASSERT_TRUE(talk.Ask(prompt, GreedyParams(2000), listener).ok());
  ASSERT_TRUE(listener->AwaitTokens(5));
  harness.engine->Cancel("talk-1", absl::CancelledError("enough"));
  ASSERT_TRUE(listener->AwaitDone());
  ASSERT_TRUE(Eventually([&] { return harness.engine->load().kept_sessions == 1; }));
  // A step may have been running: its token has KV, whether it was delivered or not.
  const std::vector<int32_t> expected = ExpectedTokens(prompt, GreedyParams(2000));
  const std::vector<int32_t> answer(expected.begin(), expected.begin() + 1000);
  talk.prompt() = Joined(prompt, answer);
  EXPECT_GE(talk.Turn(2, GreedyParams(3)), 20 + 4);
}

TEST(EngineSessionTest, ARequestThatFailedKeepsNothing) {
  EngineHarness harness(TestOptions(Role::kBoth));
  Conversation talk(harness, "talk");
  talk.Turn(20, GreedyParams(3));
  harness.control->FailNext(absl::InternalError("broken"));
  const auto listener = std::make_shared<RecordingListener>();
  ASSERT_TRUE(talk.Ask(Joined(talk.prompt(), {1, 2, 3}), GreedyParams(3), listener).ok());
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_TRUE(absl::IsInternal(listener->status()));
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
  EXPECT_EQ(harness.engine->load().kept_sessions, 0);
}

TEST(EngineSessionTest, KeptKvMakesRoomForRequestsOldestFirst) {
  EngineHarness harness(TestOptions(Role::kBoth, /*pages=*/3 * 30));  // 30 per layer
  Conversation first(harness, "first");
  Conversation second(harness, "second");
  first.Turn(40, GreedyParams(4));   // 11 pages of 4 tokens in each layer
  second.Turn(36, GreedyParams(4));  // 10
  EXPECT_TRUE(Eventually([&] { return harness.engine->load().kept_sessions == 2; }));
  EXPECT_EQ(harness.engine->load().pages_free, 90) << "kept pages count as free";
  EXPECT_GT(harness.engine->load().kept_bytes, 0);
  // 15 pages: the oldest has to go, the other one stays.
  const auto other = harness.Submit("other", MakePrompt(50, 4), GreedyParams(8));
  ASSERT_TRUE(other->AwaitDone());
  EXPECT_EQ(other->tokens(), ExpectedTokens(MakePrompt(50, 4), GreedyParams(8)));
  EXPECT_EQ(harness.engine->load().kept_sessions, 1);
  EXPECT_GT(second.Turn(4, GreedyParams(2)), 0);
  EXPECT_EQ(first.Turn(4, GreedyParams(2)), 0);
}

TEST(EngineSessionTest, ATurnTooLargeToGoOnStartsAfreshInsteadOfWaitingForItself) {
  EngineHarness harness(TestOptions(Role::kBoth, /*pages=*/3 * 30));
  Conversation talk(harness, "talk");
  talk.Turn(40, GreedyParams(4));
  talk.Turn(60, GreedyParams(8));  // 28 of 30 pages
  EXPECT_EQ(harness.engine->load().kept_sessions, 1);
}

TEST(EngineSessionTest, ATurnIsCountedOnceHoweverLongItWaits) {
  EngineHarness harness(TestOptions(Role::kBoth, /*pages=*/3 * 30));
  const auto large = harness.Submit("large", MakePrompt(40), GreedyParams(60));  // 25 of 30 pages
  ASSERT_TRUE(large->AwaitTokens(1));
  Conversation talk(harness, "talk");  // 10 pages: waits for many steps
  EXPECT_EQ(talk.Turn(36, GreedyParams(4)), 0);
  EXPECT_EQ(harness.observer.fresh, 1);
  EXPECT_GT(talk.Turn(3, GreedyParams(2)), 0);
  EXPECT_EQ(harness.observer.fresh, 1);
  EXPECT_EQ(harness.observer.kept, 1);
}

TEST(EngineSessionTest, KeptKvExpires) {
  EngineOptions options = TestOptions(Role::kBoth);
  options.kept_ttl = absl::Seconds(100);
  EngineHarness harness(options);
  Conversation talk(harness, "talk");
  talk.Turn(20, GreedyParams(3));
  harness.clock.Advance(absl::Seconds(99));
  EXPECT_GT(talk.Turn(5, GreedyParams(3)), 0) << "and the time starts again";
  harness.clock.Advance(absl::Seconds(101));
  EXPECT_TRUE(Eventually([&] { return harness.engine->load().kept_sessions == 0; }));
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

TEST(EngineSessionTest, SessionsAreBoundedByNumber) {
  EngineOptions options = TestOptions(Role::kBoth);
  options.max_kept_sessions = 3;
  EngineHarness harness(options);
  for (int i = 0; i < 6; ++i) {
    Conversation talk(harness, absl::StrCat("talk", i));
    talk.Turn(9, GreedyParams(2));
  }
  EXPECT_TRUE(Eventually([&] {
    const EngineLoad load = harness.engine->load();
    return load.kept_sessions == 3 && load.running_sequences == 0 &&
           load.pages_free == load.pages_total;
  }));
}

TEST(EngineSessionTest, NothingIsKeptWhereThatIsTurnedOff) {
  EngineOptions options = TestOptions(Role::kBoth);
  options.max_kept_sessions = 0;
  EngineHarness harness(options);
  Conversation talk(harness, "talk");
  const auto listener = std::make_shared<RecordingListener>();
  ASSERT_TRUE(talk.Ask(MakePrompt(9), GreedyParams(2), listener).ok());
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
  EXPECT_EQ(harness.engine->load().kept_sessions, 0);
}

TEST(EngineSessionTest, TwoRequestsOfOneSessionAtOnceAreBothRight) {
  EngineHarness harness(TestOptions(Role::kBoth));
  Conversation talk(harness, "talk");
  talk.Turn(20, GreedyParams(4));
  const std::vector<int32_t> one = Joined(talk.prompt(), MakePrompt(5, 50));
  const std::vector<int32_t> two = Joined(talk.prompt(), MakePrompt(6, 60));
  const auto first = std::make_shared<RecordingListener>();
  const auto second = std::make_shared<RecordingListener>();
  ASSERT_TRUE(talk.Ask(one, GreedyParams(4), first).ok());
  ASSERT_TRUE(talk.Ask(two, GreedyParams(4), second).ok());
  ASSERT_TRUE(first->AwaitDone() && second->AwaitDone());
  EXPECT_EQ(first->tokens(), ExpectedTokens(one, GreedyParams(4)));
  EXPECT_EQ(second->tokens(), ExpectedTokens(two, GreedyParams(4)));
  EXPECT_EQ(second->stats().cached_tokens, 0);
}

TEST(EngineSessionTest, SeveralAnswersCannotBeKept) {
  EngineHarness harness(TestOptions(Role::kBoth));
  Conversation talk(harness, "talk");
  SamplingParams sampling = GreedyParams(4);
  sampling.n = 2;
  const absl::Status status =
      talk.Ask(MakePrompt(8), sampling, std::make_shared<RecordingListener>());
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("n = 1"));
}

// --- Role decode: the first turn lands, the next ones are computed here.

struct DecodeTurn {
  std::shared_ptr<RecordingListener> listener = std::make_shared<RecordingListener>();
  absl::StatusOr<ReservationGrant> grant = absl::UnknownError("no answer");
};

DecodeTurn ReserveTurn(EngineHarness& harness,
                       std::string id,
                       const std::vector<int32_t>& prompt,
                       const SamplingParams& sampling) {
  DecodeTurn turn;
  ReserveRequest request;
  request.request_id = std::move(id);
  request.prompt_tokens = static_cast<int64_t>(prompt.size());
  request.prompt = prompt;
  request.session_id = "talk";
  request.sampling = sampling;
  turn.grant = AwaitGrant(*harness.engine, std::move(request), turn.listener);
  return turn;
}

// Prefills elsewhere and lands: what the pages hold is copied by the sink of the split tests.
void Land(EngineHarness& prefill,
          EngineHarness& decode,
          const ReservationGrant& grant,
          const std::vector<int32_t>& prompt,
          const SamplingParams& sampling) {
  GenerateRequest request;
  request.request_id = "p";
  request.prompt = prompt;
  request.sampling = sampling;
  request.sink = std::make_unique<CopySink>(*decode.engine, grant);
  const auto listener = std::make_shared<RecordingListener>();
  ASSERT_TRUE(prefill.engine->Submit(std::move(request), listener).ok());
  ASSERT_TRUE(listener->AwaitDone());
  ASSERT_TRUE(listener->status().ok()) << listener->status();
}

TEST(EngineSessionTest, DecodeGoesOnFromWhatPrefillShippedAndItselfGenerated) {
  EngineHarness prefill(TestOptions(Role::kPrefill));
  EngineHarness decode(TestOptions(Role::kDecode));
  const SamplingParams sampling = GreedyParams(6);
  std::vector<int32_t> prompt = MakePrompt(21);
  DecodeTurn first = ReserveTurn(decode, "t1", prompt, sampling);
  ASSERT_TRUE(first.grant.ok()) << first.grant.status();
  EXPECT_FALSE(first.grant->extends_kept);
  Land(prefill, decode, *first.grant, prompt, sampling);
  ASSERT_TRUE(first.listener->AwaitDone());
  ASSERT_TRUE(Eventually([&] { return decode.engine->load().kept_sessions == 1; }));

  prompt = Joined(Joined(prompt, ExpectedTokens(prompt, sampling)), MakePrompt(9, 3));
  DecodeTurn second = ReserveTurn(decode, "t2", prompt, sampling);
  ASSERT_TRUE(second.grant.ok()) << second.grant.status();
  EXPECT_TRUE(second.grant->extends_kept);
  EXPECT_THAT(second.grant->memory, SizeIs(0));
  ASSERT_TRUE(second.listener->AwaitDone());
  EXPECT_TRUE(second.listener->status().ok()) << second.listener->status();
  EXPECT_EQ(second.listener->tokens(), ExpectedTokens(prompt, sampling)) << "first tokens included";
  EXPECT_EQ(second.listener->stats().cached_tokens, 21 + 5);
}

TEST(EngineSessionTest, DecodeLeavesLongTurnsToPrefill) {
  EngineHarness prefill(TestOptions(Role::kPrefill));
  EngineOptions options = TestOptions(Role::kDecode);
  options.max_extension_tokens = 8;
  EngineHarness decode(options);
  const SamplingParams sampling = GreedyParams(3);
  std::vector<int32_t> prompt = MakePrompt(10);
  DecodeTurn first = ReserveTurn(decode, "t1", prompt, sampling);
  ASSERT_TRUE(first.grant.ok());
  Land(prefill, decode, *first.grant, prompt, sampling);
  ASSERT_TRUE(first.listener->AwaitDone());
  ASSERT_TRUE(Eventually([&] { return decode.engine->load().kept_sessions == 1; }));
  prompt = Joined(Joined(prompt, ExpectedTokens(prompt, sampling)), MakePrompt(8, 3));
  DecodeTurn second = ReserveTurn(decode, "t2", prompt, sampling);  // 9 new tokens
  ASSERT_TRUE(second.grant.ok());
  EXPECT_FALSE(second.grant->extends_kept);
  decode.engine->Cancel("t2", absl::CancelledError("enough"));
  ASSERT_TRUE(second.listener->AwaitDone());
  EXPECT_TRUE(Eventually([&] { return decode.AtBaseline(); }));
}

TEST(EngineSessionTest, AReservationWithASessionCarriesItsPrompt) {
  EngineHarness decode(TestOptions(Role::kDecode));
  ReserveRequest request;
  request.request_id = "a";
  request.prompt_tokens = 5;
  request.prompt = MakePrompt(4);
  request.session_id = "talk";
  request.sampling = GreedyParams(2);
  const absl::Status status = decode.engine->Reserve(
      std::move(request), std::make_shared<RecordingListener>(), [](const auto&) { FAIL(); });
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("prompt_tokens = 5"));
}

}  // namespace
}  // namespace baton::engine
