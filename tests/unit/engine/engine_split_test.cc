// A prefill and a decode engine joined by a sink that copies pages: the same tokens as one engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/engine/copy_sink.h"
#include "tests/unit/engine/engine_harness.h"

namespace baton::engine {
namespace {

struct SplitResult {
  std::shared_ptr<RecordingListener> prefill = std::make_shared<RecordingListener>();
  std::shared_ptr<RecordingListener> decode = std::make_shared<RecordingListener>();

  std::vector<int32_t> tokens(int32_t index) const {
    std::vector<int32_t> all = prefill->tokens(index);
    const std::vector<int32_t> rest = decode->tokens(index);
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  }
  // Told exactly once, by one of the two sides.
  SequenceFinish finish(int32_t index) const {
    const auto first = prefill->finish(index);
    const auto later = decode->finish(index);
    EXPECT_NE(first.has_value(), later.has_value());
    return first.value_or(later.value_or(SequenceFinish{}));
  }
};

class EngineSplitTest : public testing::Test {
 protected:
  SplitResult Start(const std::string& id,
                    const std::vector<int32_t>& prompt,
                    const SamplingParams& params) {
    SplitResult result;
    const auto grant =
        decode_.Reserve(id, static_cast<int64_t>(prompt.size()), params, result.decode);
    EXPECT_TRUE(grant.ok()) << grant.status();
    GenerateRequest request;
    request.request_id = id;
    request.prompt = prompt;
    request.sampling = params;
    request.sink = std::make_unique<CopySink>(*decode_.engine, *grant);
    const absl::Status status = prefill_.engine->Submit(std::move(request), result.prefill);
    EXPECT_TRUE(status.ok()) << status;
    return result;
  }

  EngineHarness decode_{TestOptions(Role::kDecode)};
  EngineHarness prefill_{TestOptions(Role::kPrefill)};
};

TEST_F(EngineSplitTest, GivesTheTokensOfOneEngine) {
  std::vector<std::pair<SamplingParams, SplitResult>> runs;
  EngineHarness both(TestOptions(Role::kBoth));
  for (int i = 0; i < 30; ++i) {
    SamplingParams params = GreedyParams(1 + i % 12);
    params.temperature = i % 3 == 0 ? 0.0f : 0.9f;
    params.top_p = i % 4 == 0 ? 0.8f : 1.0f;
    params.seed = static_cast<uint64_t>(i) * 77;
    params.n = i % 5 == 0 ? 3 : 1;
    params.repetition_penalty = i % 2 == 0 ? 1.4f : 1.0f;
    params.presence_penalty = i % 7 == 0 ? 0.5f : 0.0f;
    params.stop_token_ids = {i % FakeModel::kVocab, (i * 3 + 1) % FakeModel::kVocab};
    params.min_tokens = std::min(params.max_tokens, i % 4);
    params.logprobs = 3;
    const auto prompt = MakePrompt(1 + (i * 11) % 60, i);
    const SplitResult split = Start(absl::StrCat("s", i), prompt, params);
    const auto single = both.Submit(absl::StrCat("s", i), prompt, params);
    ASSERT_TRUE(split.prefill->AwaitDone());
    ASSERT_TRUE(split.decode->AwaitDone());
    ASSERT_TRUE(single->AwaitDone());
    EXPECT_TRUE(split.prefill->status().ok()) << split.prefill->status();
    EXPECT_TRUE(split.decode->status().ok()) << split.decode->status();
    for (int32_t index = 0; index < params.n; ++index) {
      EXPECT_EQ(split.tokens(index), single->tokens(index)) << i;
      EXPECT_EQ(split.tokens(index), ExpectedTokens(prompt, params, index)) << i;
      EXPECT_EQ(split.finish(index).stop_token_id, single->finish(index)->stop_token_id) << i;
    }
    EXPECT_EQ(split.decode->stats().completion_tokens, single->stats().completion_tokens);
    EXPECT_EQ(split.decode->stats().kv_wire_bytes, split.prefill->stats().kv_wire_bytes);
    EXPECT_EQ(split.decode->stats().kv_resident_bytes, single->stats().kv_resident_bytes);
  }
  EXPECT_TRUE(Eventually([&] { return prefill_.AtBaseline() && decode_.AtBaseline(); }));
}

// Catalogue T24
TEST_F(EngineSplitTest, MaxTokensIsExact) {
  for (const int32_t max_tokens : {1, 2, 3, 8}) {
    const SplitResult result =
        Start(absl::StrCat("m", max_tokens), MakePrompt(9), GreedyParams(max_tokens));
    ASSERT_TRUE(result.prefill->AwaitDone());
    ASSERT_TRUE(result.decode->AwaitDone());
    EXPECT_EQ(result.tokens(0).size(), static_cast<size_t>(max_tokens));
    EXPECT_EQ(result.finish(0).reason, FinishReason::kLength);
    EXPECT_EQ(result.decode->stats().completion_tokens, max_tokens);
  }
}

// Catalogue T25
TEST_F(EngineSplitTest, StopIdAsFirstTokenEndsBothSides) {
  prefill_.control->Prefer(7);
  SamplingParams params = GreedyParams(5);
  params.stop_token_ids = {7};
  const SplitResult result = Start("s", MakePrompt(9), params);
  ASSERT_TRUE(result.prefill->AwaitDone());
  ASSERT_TRUE(result.decode->AwaitDone());
  EXPECT_TRUE(result.decode->status().ok());
  EXPECT_TRUE(result.tokens(0).empty());
  EXPECT_EQ(result.finish(0).stop_token_id, 7);
  EXPECT_TRUE(decode_.control->steps().empty());
  EXPECT_TRUE(Eventually([&] { return prefill_.AtBaseline() && decode_.AtBaseline(); }));
}

}  // namespace
}  // namespace baton::engine
