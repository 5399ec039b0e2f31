// A request that continues one whose worker was lost: whatever its client has already, in every KV
// format, the rest is what the undisturbed request gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/kv/codec/codec_set.h"
#include "tests/unit/engine/await_grant.h"
#include "tests/unit/engine/copy_sink.h"
#include "tests/unit/engine/eventually.h"
#include "tests/unit/engine/real_engine.h"
#include "tests/unit/engine/recording_listener.h"

namespace baton::engine {
namespace {

using Delivered = std::vector<std::vector<int32_t>>;

constexpr kv::CodecPools kPools = {.fp8_bytes = 8 << 20,
                                   .diffkv_bytes = 16 << 20,
                                   .shadowkv_bytes = 16 << 20,
                                   .hidden_bytes = 8 << 20};
constexpr char kModel[] = "tiny-llama-needle-swiftkv-l6";
constexpr size_t kPromptTokens = 190;
constexpr int32_t kMaxTokens = 40;

std::unique_ptr<checkpoint::Checkpoint> OpenModel() {
  auto opened = checkpoint::Checkpoint::Open(
      absl::StrCat(BATON_SOURCE_DIR "/tests/data/models/", kModel), {});
  EXPECT_TRUE(opened.ok()) << opened.status();
  return opened.ok() ? *std::move(opened) : nullptr;
}

// Two sequences that depend on everything that a lost worker knew: random numbers and counts.
GenerateRequest MakeRequest(const std::string& policy, Delivered delivered) {
  GenerateRequest request;
  request.request_id = "r";
  for (size_t i = 0; i < kPromptTokens; ++i) {
    request.prompt.push_back(static_cast<int32_t>((i * i * 31 + i * 7) % 4000));
  }
  request.sampling.temperature = 0.9f;
  request.sampling.seed = 20;
  request.sampling.n = 2;
  request.sampling.max_tokens = kMaxTokens;
  request.sampling.presence_penalty = 0.3f;
  request.sampling.repetition_penalty = 1.2f;
  request.kv_policy = policy;
  request.delivered = std::move(delivered);
  return request;
}

std::vector<int32_t> Tail(const std::vector<int32_t>& tokens, size_t from) {
  return {tokens.begin() + static_cast<std::ptrdiff_t>(from), tokens.end()};
}

std::vector<int32_t> Head(const std::vector<int32_t>& tokens, size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}

class EngineContinueTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    checkpoint_ = OpenModel();
    ASSERT_NE(checkpoint_, nullptr);
  }

  std::shared_ptr<RecordingListener> Run(RealEngine& both, GenerateRequest request) {
    auto listener = std::make_shared<RecordingListener>();
    const absl::Status status = both.engine->Submit(std::move(request), listener);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(listener->AwaitDone());
    EXPECT_TRUE(listener->status().ok()) << listener->status();
    EXPECT_EQ(listener->errors(), 0);
    return listener;
  }

  // What decode tells its listener; what prefill tells is left out.
  std::shared_ptr<RecordingListener> RunSplit(RealEngine& prefill,
                                              RealEngine& decode,
                                              GenerateRequest request) {
    auto tail = std::make_shared<RecordingListener>();
    const absl::StatusOr<ReservationGrant> grant =
        AwaitGrant(*decode.engine,
                   {.request_id = request.request_id,
                    .prompt_tokens = static_cast<int64_t>(request.prompt.size()),
                    .sampling = request.sampling,
                    .kv_policy = request.kv_policy,
                    .delivered = std::exchange(request.delivered, {})},
                   tail);
    EXPECT_TRUE(grant.ok()) << grant.status();
    auto head = std::make_shared<RecordingListener>();
    request.sink = std::make_unique<CopySink>(*decode.engine, *grant);
    EXPECT_TRUE(prefill.engine->Submit(std::move(request), head).ok());
    EXPECT_TRUE(head->AwaitDone());
    EXPECT_TRUE(tail->AwaitDone());
    EXPECT_TRUE(tail->status().ok()) << tail->status();
    EXPECT_EQ(tail->errors(), 0);
    return tail;
  }

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
};

TEST_P(EngineContinueTest, GivesTheRestOfTheUndisturbedAnswer) {
  RealEngine first(*checkpoint_, Role::kBoth, 64, 128, kPools);
  const auto whole = Run(first, MakeRequest(GetParam(), {}));
  // Other chunks than on the lost worker.
  RealEngine next(*checkpoint_, Role::kBoth, 48, 96, kPools);
  for (const size_t begun : {size_t{1}, size_t{17}, size_t{kMaxTokens - 1}, size_t{kMaxTokens}}) {
    SCOPED_TRACE(begun);
    const size_t other = begun / 2;  // the sequences need not be equally far; 0 is possible
    const auto rest = Run(
        next,
        MakeRequest(GetParam(), {Head(whole->tokens(0), begun), Head(whole->tokens(1), other)}));
    EXPECT_EQ(rest->tokens(0), Tail(whole->tokens(0), begun));
    EXPECT_EQ(rest->tokens(1), Tail(whole->tokens(1), other));
    for (const int32_t index : {0, 1}) {
      ASSERT_TRUE(rest->finish(index).has_value());
      EXPECT_EQ(rest->finish(index)->reason, whole->finish(index)->reason);
    }
    EXPECT_EQ(rest->stats().completion_tokens, whole->stats().completion_tokens);
  }
  EXPECT_TRUE(Eventually([&] { return next.AtBaseline(); }));
}

TEST_P(EngineContinueTest, GivesTheRestOnAnotherDecodeEngine) {
  RealEngine both(*checkpoint_, Role::kBoth, 64, 128, kPools);
  const auto whole = Run(both, MakeRequest(GetParam(), {}));
  RealEngine prefill(*checkpoint_, Role::kPrefill, 64, 128, kPools);
  RealEngine decode(*checkpoint_, Role::kDecode, 64, 128, kPools);
  const auto rest = RunSplit(
      prefill,
      decode,
      MakeRequest(GetParam(), {Head(whole->tokens(0), 11), Head(whole->tokens(1), kMaxTokens)}));
  EXPECT_EQ(rest->tokens(0), Tail(whole->tokens(0), 11));
  EXPECT_TRUE(rest->tokens(1).empty());
  EXPECT_TRUE(rest->finish(0).has_value());
  EXPECT_TRUE(rest->finish(1).has_value()) << "the end may have been lost with the worker";
  EXPECT_TRUE(Eventually([&] { return prefill.AtBaseline() && decode.AtBaseline(); }));
}

// As a prefill that rounds differently draws it.
TEST_P(EngineContinueTest, WhatWasDeliveredStandsBeforeAnotherFirstToken) {
  RealEngine both(*checkpoint_, Role::kBoth, 64, 128, kPools);
  const int32_t other = Run(both, MakeRequest(GetParam(), {}))->tokens(0).front() + 1;
  const auto want = Run(both, MakeRequest(GetParam(), {{other}, {}}));
  RealEngine prefill(*checkpoint_, Role::kPrefill, 64, 128, kPools);
  RealEngine decode(*checkpoint_, Role::kDecode, 64, 128, kPools);
  const auto rest = RunSplit(prefill, decode, MakeRequest(GetParam(), {{other}, {}}));
  EXPECT_EQ(rest->tokens(0).size(), size_t{kMaxTokens} - 1);
  // Hidden states are rounded where they are handed off.
  if (!GetParam().starts_with("hidden")) {
    EXPECT_EQ(rest->tokens(0), want->tokens(0));
  }
}

TEST_P(EngineContinueTest, AStopTokenBehindWhatWasDeliveredEndsTheSequence) {
  RealEngine both(*checkpoint_, Role::kBoth, 64, 128, kPools);
  const std::vector<int32_t> whole = Run(both, MakeRequest(GetParam(), {}))->tokens(0);
  GenerateRequest stopped = MakeRequest(GetParam(), {});
  stopped.sampling.stop_token_ids = {whole[20]};
  const auto ended = Run(both, std::move(stopped));
  GenerateRequest again = MakeRequest(GetParam(), {ended->tokens(0), ended->tokens(1)});
  again.sampling.stop_token_ids = {whole[20]};
  const auto rest = Run(both, std::move(again));
  EXPECT_TRUE(rest->tokens(0).empty());
  ASSERT_TRUE(rest->finish(0).has_value());
  EXPECT_EQ(rest->finish(0)->reason, FinishReason::kStop);
  EXPECT_EQ(rest->finish(0)->stop_token_id, whole[20]);
}

std::string NameOf(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) {
    c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         EngineContinueTest,
                         testing::Values("dense",
                                         "fp8",
                                         "diffkv",
                                         "diffkv:every=4",
                                         "shadowkv:rank=32,chunk=2,sel=q2,budget=32,outliers=0,"
                                         "local=8",
                                         "hidden+diffkv"),
                         NameOf);

TEST(EngineContinueRefusalTest, WhatCanNotHaveBeenDeliveredIsRefused) {
  const auto checkpoint = OpenModel();
  ASSERT_NE(checkpoint, nullptr);
  RealEngine both(*checkpoint, Role::kBoth, 64, 128);
  const auto refusal = [&](Delivered delivered) {
    return both.engine->Submit(MakeRequest("dense", std::move(delivered)),
                               std::make_shared<RecordingListener>());
  };
  EXPECT_EQ(refusal({{1}}),
            absl::InvalidArgumentError(
                "delivered tokens are given for 1 sequences; the request has n = 2"));
  EXPECT_EQ(refusal({{}, std::vector<int32_t>(kMaxTokens + 1)}),
            absl::InvalidArgumentError("41 tokens are said to be delivered; max_tokens is 40"));
  EXPECT_THAT(std::string(refusal({{}, {5, -1}}).message()),
              testing::StartsWith("delivered token 1 is -1; the vocabulary has "));
  RealEngine prefill(*checkpoint, Role::kPrefill, 64, 128);
  GenerateRequest request = MakeRequest("dense", {{}, {}});
  request.open_sink = [] { return nullptr; };
  EXPECT_EQ(prefill.engine->Submit(std::move(request), std::make_shared<RecordingListener>()),
            absl::InvalidArgumentError("delivered tokens are replayed by decode, not by prefill"));
}

}  // namespace
}  // namespace baton::engine
