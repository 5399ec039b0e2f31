// Role decode: reservations, landing, commit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/pieces.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/engine/sampling/penalty_state.h"
#include "common/engine/sampling_params.h"
#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"
#include "tests/unit/engine/engine_harness.h"
#include "tests/unit/engine/fake_model.h"
#include "tests/unit/engine/granted_memory.h"
#include "tests/unit/engine/recording_listener.h"

namespace baton::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Writes the prompt's KV as FakeModel would have.
void Land(const ReservationGrant& grant, const std::vector<int32_t>& prompt) {
  const kernels::DensePageLayout layout = {.page_tokens = kPageTokens,
                                           .kv_heads = FakeModel::kHeads,
                                           .head_dim = FakeModel::kHeadDim,
                                           .dtype = kernels::DType::kF32};
  for (int32_t layer = 0; layer < FakeModel::kLayers; ++layer) {
    for (size_t position = 0; position < prompt.size(); ++position) {
      std::byte* const bytes = GrantedPage(grant,
                                           layer,
                                           static_cast<int32_t>(position) / kPageTokens,
                                           static_cast<size_t>(grant.page_bytes));
      const auto slot = static_cast<int32_t>(position) % kPageTokens;
      for (int32_t head = 0; head < FakeModel::kHeads; ++head) {
        auto* key = reinterpret_cast<float*>(bytes + layout.key_offset(head, slot));
        auto* value = reinterpret_cast<float*>(bytes + layout.value_offset(head, slot));
        std::fill_n(key, FakeModel::kHeadDim, FakeKey(prompt[position]));
        std::fill_n(value, FakeModel::kHeadDim, FakeValue(layer, static_cast<int64_t>(position)));
      }
    }
  }
}

CommitInfo FirstTokens(const std::vector<int32_t>& prompt, const SamplingParams& params) {
  CommitInfo info;
  for (int32_t i = 0; i < params.n; ++i) {
    SamplingParams one = params;
    one.max_tokens = 1;
    one.min_tokens = std::min(one.min_tokens, 1);
    one.stop_token_ids.clear();
    TokenOutput token;
    token.token_id = ExpectedTokens(prompt, one, i)[0];
    info.first_tokens.push_back(token);
    info.finished.emplace_back();
  }
  info.prompt_token_bitmap = MakeTokenBitmap(prompt, FakeModel::kVocab);
  info.kv_wire_bytes = 4321;
  return info;
}

std::vector<int32_t> WithoutFirst(std::vector<int32_t> tokens) {
  tokens.erase(tokens.begin());
  return tokens;
}

TEST(EngineDecodeTest, ContinuesFromLandedPages) {
  EngineHarness harness(TestOptions(Role::kDecode));
  const auto prompt = MakePrompt(10);
  const auto listener = std::make_shared<RecordingListener>();
  const auto grant = harness.Reserve("d", 10, GreedyParams(7), listener);
  ASSERT_TRUE(grant.ok()) << grant.status();
  EXPECT_EQ(grant->pages_per_layer, 3);
  EXPECT_EQ(grant->page_bytes, 256);
  EXPECT_EQ(BytesOf(grant->memory), 9u * 256);
  EXPECT_NE(grant->epoch, 0u);
  EXPECT_TRUE(Eventually([&] { return harness.engine->load().pages_reserved == 15; }));
  EXPECT_TRUE(harness.Begin(*grant, 1).ok());
  Land(*grant, prompt);
  EXPECT_TRUE(harness.Commit(*grant, 1, FirstTokens(prompt, GreedyParams(7))).ok());
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_TRUE(listener->status().ok()) << listener->status();
  EXPECT_EQ(listener->tokens(), WithoutFirst(ExpectedTokens(prompt, GreedyParams(7))));
  EXPECT_EQ(listener->finish()->reason, FinishReason::kLength);
  EXPECT_EQ(listener->stats().completion_tokens, 7);
  EXPECT_EQ(listener->stats().kv_wire_bytes, 4321);
  EXPECT_EQ(listener->stats().kv_resident_bytes, 9 * 256);
  EXPECT_THAT(harness.reservations.released(), ElementsAre(grant->reservation_id));
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

// Threads of transports and calls may still have something for an engine that has shut down.
TEST(EngineDecodeTest, WhatComesAfterShutdownIsRefused) {
  EngineHarness harness(TestOptions(Role::kDecode));
  const auto prompt = MakePrompt(10);
  const auto listener = std::make_shared<RecordingListener>();
  const auto grant = harness.Reserve("d", 10, GreedyParams(7), listener);
  ASSERT_TRUE(grant.ok()) << grant.status();
  EXPECT_TRUE(harness.Begin(*grant, 1).ok());
  harness.engine->Shutdown();
  EXPECT_TRUE(listener->done());
  EXPECT_EQ(listener->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(harness.reservations.released(), ElementsAre(grant->reservation_id));

  harness.engine->HiddenLanded(grant->reservation_id, grant->epoch, 1, 1);
  EXPECT_EQ(harness.Commit(*grant, 1, FirstTokens(prompt, GreedyParams(7))).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(harness.Begin(*grant, 2).code(), absl::StatusCode::kUnavailable);
  harness.engine->Cancel("d", absl::CancelledError("enough"));
  const auto another = std::make_shared<RecordingListener>();
  EXPECT_EQ(harness.Reserve("e", 10, GreedyParams(7), another).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_FALSE(another->done());
  EXPECT_TRUE(harness.AtBaseline());
  harness.engine->Shutdown();
}

TEST(EngineDecodeTest, SequencesShareLandedPagesAndCopyTheLast) {
  for (const int32_t prompt_tokens : {1, 4, 10, 15}) {
    EngineHarness harness(TestOptions(Role::kDecode));
    const auto prompt = MakePrompt(prompt_tokens);
    SamplingParams params = GreedyParams(9);
    params.temperature = 1.3f;
    params.seed = 31;
    params.n = 4;
    params.repetition_penalty = 1.2f;
    params.presence_penalty = 0.4f;
    const auto listener = std::make_shared<RecordingListener>();
    const auto grant = harness.Reserve("d", prompt_tokens, params, listener);
    ASSERT_TRUE(grant.ok()) << grant.status();
    ASSERT_TRUE(harness.Begin(*grant, 1).ok());
    Land(*grant, prompt);
    ASSERT_TRUE(harness.Commit(*grant, 1, FirstTokens(prompt, params)).ok());
    ASSERT_TRUE(listener->AwaitDone());
    ASSERT_TRUE(listener->status().ok()) << listener->status();
    for (int32_t i = 0; i < 4; ++i) {
      EXPECT_EQ(listener->tokens(i), WithoutFirst(ExpectedTokens(prompt, params, i))) << i;
    }
    EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
  }
}

TEST(EngineDecodeTest, SequencesThatEndedWithTheirFirstTokenTakeNoStep) {
  EngineHarness harness(TestOptions(Role::kDecode));
  const auto prompt = MakePrompt(8);
  SamplingParams params = GreedyParams(6);
  params.stop_token_ids = {7};
  for (const bool by_stop : {true, false}) {
    params.max_tokens = by_stop ? 6 : 1;
    const auto listener = std::make_shared<RecordingListener>();
    const auto grant = harness.Reserve("d", 8, params, listener);
    ASSERT_TRUE(grant.ok());
    ASSERT_TRUE(harness.Begin(*grant, 1).ok());
    Land(*grant, prompt);
    CommitInfo info = FirstTokens(prompt, params);
    info.first_tokens[0].token_id = by_stop ? 7 : 8;
    ASSERT_TRUE(harness.Commit(*grant, 1, info).ok());
    ASSERT_TRUE(listener->AwaitDone());
    EXPECT_TRUE(listener->status().ok());
    EXPECT_THAT(listener->tokens(), IsEmpty());
    EXPECT_FALSE(listener->finish().has_value()) << "prefill has told it already";
    EXPECT_EQ(listener->stats().completion_tokens, 1);
  }
  EXPECT_THAT(harness.control->steps(), IsEmpty());
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

TEST(EngineDecodeTest, RefusesWhatNeverFitsAndWhatDoesNotFitNow) {
  EngineOptions options = TestOptions(Role::kDecode, 30);
  options.max_running_sequences = 3;
  EngineHarness harness(options);
  const auto listener = std::make_shared<RecordingListener>();
  const auto never = harness.Reserve("x", 40, GreedyParams(4), listener);
  EXPECT_EQ(never.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(never.status().message()), HasSubstr("EXCEEDS_CAPACITY"));
  SamplingParams wide = GreedyParams(1);
  wide.n = 4;
  EXPECT_EQ(harness.Reserve("x", 1, wide, listener).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto too_long = harness.Reserve("x", 4000, GreedyParams(97), listener);
  EXPECT_THAT(std::string(too_long.status().message()), HasSubstr("PROMPT_TOO_LONG"));

  const auto half = harness.Reserve("a", 20, GreedyParams(4), listener);  // 6 x 3 pages
  ASSERT_TRUE(half.ok());
  const auto full = harness.Reserve("b", 20, GreedyParams(4), listener);
  EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.status().message()), HasSubstr("KV_POOL_FULL"));
  wide.n = 3;
  EXPECT_EQ(harness.Reserve("c", 1, wide, listener).status().code(),
            absl::StatusCode::kResourceExhausted);
  harness.engine->Cancel("a", absl::CancelledError("done"));
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
  EXPECT_TRUE(harness.Reserve("b", 20, GreedyParams(4), listener).ok());
}

TEST(EngineDecodeTest, LeaseExpiryFreesTheReservationAndWithdrawsTheWindowFirst) {
  EngineHarness harness(TestOptions(Role::kDecode));
  const auto listener = std::make_shared<RecordingListener>();
  const auto grant = harness.Reserve("d", 10, GreedyParams(7), listener);
  ASSERT_TRUE(grant.ok());
  harness.clock.Advance(absl::Seconds(9));
  EXPECT_TRUE(harness.Renew(*grant).ok());
  harness.clock.Advance(absl::Seconds(9));
  EXPECT_TRUE(harness.Begin(*grant, 1).ok());
  EXPECT_FALSE(listener->done());
  harness.clock.Advance(absl::Seconds(10));
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_EQ(listener->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(listener->status().message()), HasSubstr("lease expired"));
  EXPECT_THAT(harness.reservations.released(), ElementsAre(grant->reservation_id));
  for (const absl::Status& status :
       {harness.Renew(*grant),
        harness.Begin(*grant, 2),
        harness.Commit(*grant, 1, FirstTokens(MakePrompt(10), GreedyParams(7)))}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("STALE_EPOCH"));
  }
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

// Catalogue T14: whoever owns the pages next, no window over them is open any more.
TEST(EngineDecodeTest, WindowIsWithdrawnBeforePagesAreFree) {
  EngineHarness harness(TestOptions(Role::kDecode, 30));
  std::vector<int64_t> free_at_release;
  harness.reservations.hook = [&](uint64_t) {
    free_at_release.push_back(harness.engine->load().pages_free);
  };
  const auto listener = std::make_shared<RecordingListener>();
  ASSERT_TRUE(harness.Reserve("d", 30, GreedyParams(7), listener).ok());
  EXPECT_TRUE(Eventually([&] { return harness.engine->load().pages_free == 0; }));
  harness.engine->Cancel("d", absl::CancelledError("x"));
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_THAT(free_at_release, ElementsAre(0));
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

TEST(EngineDecodeTest, StaleEpochsAndAttemptsAreRefused) {
  EngineHarness harness(TestOptions(Role::kDecode));
  const auto prompt = MakePrompt(8);
  const auto listener = std::make_shared<RecordingListener>();
  const auto grant = harness.Reserve("d", 8, GreedyParams(3), listener);
  ASSERT_TRUE(grant.ok());
  ReservationGrant foreign = *grant;
  foreign.epoch ^= 1;
  EXPECT_EQ(harness.Begin(foreign, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(harness.Begin(*grant, 1).ok());
  EXPECT_TRUE(harness.Begin(*grant, 2).ok());
  EXPECT_EQ(harness.Begin(*grant, 1).code(), absl::StatusCode::kFailedPrecondition);
  Land(*grant, prompt);
  const CommitInfo info = FirstTokens(prompt, GreedyParams(3));
  EXPECT_EQ(harness.Commit(*grant, 1, info).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(harness.Commit(foreign, 2, info).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(harness.Commit(*grant, 2, info).ok());
  const absl::Status again = harness.Commit(*grant, 2, info);
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()), HasSubstr("STALE_EPOCH"));
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_EQ(listener->tokens(), WithoutFirst(ExpectedTokens(prompt, GreedyParams(3))));
  EXPECT_THAT(harness.reservations.released(), SizeIs(1));
}

TEST(EngineDecodeTest, CommitThatDoesNotFitLeavesTheReservationOpen) {
  EngineHarness harness(TestOptions(Role::kDecode));
  const auto prompt = MakePrompt(8);
  SamplingParams params = GreedyParams(3);
  params.repetition_penalty = 1.5f;
  const auto listener = std::make_shared<RecordingListener>();
  const auto grant = harness.Reserve("d", 8, params, listener);
  ASSERT_TRUE(grant.ok());
  ASSERT_TRUE(harness.Begin(*grant, 1).ok());
  const CommitInfo good = FirstTokens(prompt, params);
  CommitInfo two_tokens = good;
  two_tokens.first_tokens.push_back({});
  CommitInfo bad_token = good;
  bad_token.first_tokens[0].token_id = FakeModel::kVocab;
  CommitInfo short_bitmap = good;
  short_bitmap.prompt_token_bitmap.pop_back();
  CommitInfo flags = good;
  flags.finished.resize(2);
  for (const CommitInfo& bad : {two_tokens, bad_token, short_bitmap, flags}) {
    EXPECT_EQ(harness.Commit(*grant, 1, bad).code(), absl::StatusCode::kInvalidArgument);
  }
  Land(*grant, prompt);
  EXPECT_TRUE(harness.Commit(*grant, 1, good).ok());
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_EQ(listener->tokens(), WithoutFirst(ExpectedTokens(prompt, params)));
}

TEST(EngineDecodeTest, RolesRefuseEachOthersRequests) {
  EngineHarness decode(TestOptions(Role::kDecode));
  const auto listener = std::make_shared<RecordingListener>();
  EXPECT_EQ(decode.TrySubmit("x", MakePrompt(3), GreedyParams(1), listener).code(),
            absl::StatusCode::kFailedPrecondition);
  EngineHarness both(TestOptions(Role::kBoth));
  EXPECT_EQ(both.Reserve("x", 3, GreedyParams(1), listener).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace baton::engine
