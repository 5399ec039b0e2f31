// Role prefill: chunks, shipping and the hand-off.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/engine/sampling/penalty_state.h"
#include "common/engine/sampling_params.h"
#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"
#include "tests/unit/engine/engine_harness.h"
#include "tests/unit/engine/fake_model.h"
#include "tests/unit/engine/fake_sink.h"
#include "tests/unit/engine/recording_listener.h"

namespace baton::engine {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// The bytes that FakeModel's page `page` of `layer` has to hold on the wire.
std::vector<std::byte> ExpectedPage(const std::vector<int32_t>& prompt,
                                    int32_t layer,
                                    int32_t page) {
  const kernels::DensePageLayout layout = {.page_tokens = kPageTokens,
                                           .kv_heads = FakeModel::kHeads,
                                           .head_dim = FakeModel::kHeadDim,
                                           .dtype = kernels::DType::kF32};
  std::vector<std::byte> bytes(layout.page_bytes(), std::byte{0});
  for (int32_t slot = 0; slot < kPageTokens; ++slot) {
    const auto position = static_cast<size_t>(page) * kPageTokens + static_cast<size_t>(slot);
    if (position >= prompt.size()) {
      break;
    }
    for (int32_t head = 0; head < FakeModel::kHeads; ++head) {
      for (int32_t d = 0; d < FakeModel::kHeadDim; ++d) {
        const float key = FakeKey(prompt[position]);
        const float value = FakeValue(layer, static_cast<int64_t>(position));
        const size_t at = static_cast<size_t>(d) * sizeof(float);
        std::memcpy(bytes.data() + layout.key_offset(head, slot) + at, &key, sizeof(float));
        std::memcpy(bytes.data() + layout.value_offset(head, slot) + at, &value, sizeof(float));
      }
    }
  }
  return bytes;
}

void ExpectWholePrompt(const SinkLog& log, const std::vector<int32_t>& prompt) {
  const auto pages = log.pages();
  const auto per_layer = static_cast<int32_t>((prompt.size() + kPageTokens - 1) / kPageTokens);
  EXPECT_THAT(pages, SizeIs(static_cast<size_t>(per_layer) * FakeModel::kLayers));
  for (const auto& [key, page] : pages) {
    EXPECT_EQ(page.copy, ExpectedPage(prompt, key.first, key.second))
        << "layer " << key.first << " page " << key.second;
  }
  EXPECT_EQ(log.errors(), 0);
}

TEST(EnginePrefillTest, ShipsEveryPageOnceAndCommits) {
  EngineHarness harness(TestOptions(Role::kPrefill));
  for (const int32_t tokens : {1, 4, 5, 16, 17, 50}) {
    const auto log = std::make_shared<SinkLog>();
    const auto prompt = MakePrompt(tokens);
    const auto listener = harness.Submit(absl::StrCat("p", tokens), prompt, GreedyParams(9), log);
    ASSERT_TRUE(listener->AwaitDone());
    EXPECT_TRUE(listener->status().ok()) << listener->status();
    ExpectWholePrompt(*log, prompt);
    const auto first = ExpectedTokens(prompt, GreedyParams(1));
    EXPECT_EQ(listener->tokens(), first);
    EXPECT_FALSE(listener->finish().has_value());
    ASSERT_TRUE(log->committed().has_value());
    EXPECT_EQ(log->committed()->first_tokens[0].token_id, first[0]);
    EXPECT_THAT(log->committed()->prompt_token_bitmap, IsEmpty());
    EXPECT_EQ(listener->stats().kv_wire_bytes, 1234);
    EXPECT_EQ(listener->stats().completion_tokens, 1);
    EXPECT_EQ(listener->stats().kv_resident_bytes, 0);
  }
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

TEST(EnginePrefillTest, ReusedPagesShipNoBytesOfTheirLastOwner) {
  EngineHarness harness(TestOptions(Role::kPrefill, 12));
  for (int i = 0; i < 6; ++i) {
    const auto log = std::make_shared<SinkLog>();
    const auto prompt = MakePrompt(i % 2 == 0 ? 16 : 9, i);
    const auto listener = harness.Submit("p", prompt, GreedyParams(9), log);
    ASSERT_TRUE(listener->AwaitDone());
    ExpectWholePrompt(*log, prompt);
  }
}

TEST(EnginePrefillTest, LayersShipInTheModelsGroupsWhileLaterLayersCompute) {
  EngineHarness harness(TestOptions(Role::kPrefill));
  const auto log = std::make_shared<SinkLog>();
  const auto listener = harness.Submit("p", MakePrompt(21), GreedyParams(2), log);
  ASSERT_TRUE(listener->AwaitDone());
  const auto calls = log->calls();
  ASSERT_THAT(calls, SizeIs(4));  // two chunks, two layer groups each
  EXPECT_EQ(calls[0].layer_end, 1);
  EXPECT_EQ(calls[0].page_count, 4);
  EXPECT_EQ(calls[1].layer_begin, 1);
  EXPECT_EQ(calls[1].layer_end, 3);
  EXPECT_EQ(calls[3].page_begin, 4);
  EXPECT_EQ(calls[3].page_count, 2);
}

TEST(EnginePrefillTest, FirstLayerShipsBeforeTheStepEnds) {
  EngineHarness harness(TestOptions(Role::kPrefill));
  const auto log = std::make_shared<SinkLog>();
  harness.control->Hold();
  const auto listener = harness.Submit("p", MakePrompt(8), GreedyParams(2), log);
  harness.control->AwaitHeld();
  EXPECT_THAT(log->calls(), IsEmpty());
  harness.control->Release();
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_EQ(log->calls().front().layer_end, 1);
}

TEST(EnginePrefillTest, FirstTokensDoNotWaitForTheTransfer) {
  EngineHarness harness(TestOptions(Role::kPrefill));
  const auto log = std::make_shared<SinkLog>(/*answers_at_once=*/false);
  const auto listener = harness.Submit("p", MakePrompt(8), GreedyParams(2), log);
  ASSERT_TRUE(listener->AwaitTokens(1));
  ASSERT_TRUE(log->AwaitEnd());
  EXPECT_FALSE(listener->done());
  EXPECT_EQ(harness.engine->load().pages_free, harness.engine->load().pages_total - 6);
  harness.clock.Advance(absl::Seconds(2));
  log->Answer(absl::OkStatus(), 77);
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_TRUE(listener->status().ok());
  EXPECT_EQ(listener->stats().transfer_time, absl::Seconds(2));
  EXPECT_EQ(listener->stats().kv_wire_bytes, 77);
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

TEST(EnginePrefillTest, CommitCarriesAllFirstTokensFinishesAndThePromptBitmap) {
  EngineHarness harness(TestOptions(Role::kPrefill));
  const auto log = std::make_shared<SinkLog>();
  const auto prompt = MakePrompt(8);
  SamplingParams params = GreedyParams(1);
  params.n = 3;
  params.temperature = 1.0f;
  params.repetition_penalty = 1.2f;
  const auto listener = harness.Submit("p", prompt, params, log);
  ASSERT_TRUE(listener->AwaitDone());
  const auto info = log->committed();
  ASSERT_TRUE(info.has_value());
  ASSERT_THAT(info->first_tokens, SizeIs(3));
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(info->first_tokens[static_cast<size_t>(i)].token_id,
              ExpectedTokens(prompt, params, i)[0]);
    EXPECT_EQ(info->finished[static_cast<size_t>(i)]->reason, FinishReason::kLength);
    EXPECT_EQ(listener->finish(i)->reason, FinishReason::kLength);
  }
  EXPECT_EQ(info->prompt_token_bitmap, MakeTokenBitmap(prompt, FakeModel::kVocab));
}

// Catalogue T25
TEST(EnginePrefillTest, StopIdAsFirstTokenIsCommittedButNotDelivered) {
  EngineHarness harness(TestOptions(Role::kPrefill));
  harness.control->Prefer(7);
  const auto log = std::make_shared<SinkLog>();
  SamplingParams params = GreedyParams(5);
  params.stop_token_ids = {7};
  const auto listener = harness.Submit("p", MakePrompt(8), params, log);
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_THAT(listener->tokens(), IsEmpty());
  EXPECT_EQ(listener->finish()->stop_token_id, 7);
  EXPECT_EQ(log->committed()->first_tokens[0].token_id, 7);
  EXPECT_EQ(log->committed()->finished[0]->stop_token_id, 7);
}

TEST(EnginePrefillTest, AFailedTransferEndsTheRequestWithItsStatus) {
  EngineHarness harness(TestOptions(Role::kPrefill));
  const auto log = std::make_shared<SinkLog>(/*answers_at_once=*/false);
  const auto listener = harness.Submit("p", MakePrompt(8), GreedyParams(2), log);
  ASSERT_TRUE(log->AwaitEnd());
  log->Answer(absl::DataLossError("checksum"), 0);
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_EQ(listener->status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

// Catalogue T5: a page that a sink still reads is never given to anybody else.
TEST(EnginePrefillTest, PagesStayWhileASinkReadsThem) {
  const EngineOptions options = TestOptions(Role::kPrefill, 12);  // room for a prompt of 16 tokens
  EngineHarness harness(options);
  const auto slow = std::make_shared<SinkLog>(/*answers_at_once=*/false);
  const auto first = harness.Submit("a", MakePrompt(16, 1), GreedyParams(2), slow);
  ASSERT_TRUE(slow->AwaitEnd());
  const auto log = std::make_shared<SinkLog>();
  const auto second = harness.Submit("b", MakePrompt(16, 2), GreedyParams(2), log);
  harness.engine->Cancel("a", absl::CancelledError("client left"));
  ASSERT_TRUE(first->AwaitDone());
  EXPECT_EQ(first->status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return harness.engine->load().waiting_requests == 1; }));
  EXPECT_EQ(harness.engine->load().pages_free, 0);
  EXPECT_TRUE(
      Eventually([&] { return harness.engine->load().orphaned_bytes == options.kv_pool_bytes; }));
  EXPECT_FALSE(second->done());
  EXPECT_FALSE(harness.engine->load().has_work) << "the sink's peer is waited for, not a step";
  slow->Answer(absl::OkStatus(), 0);  // compares every byte with what was handed over
  EXPECT_EQ(slow->errors(), 0);
  ASSERT_TRUE(second->AwaitDone());
  ExpectWholePrompt(*log, MakePrompt(16, 2));
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
  EXPECT_EQ(harness.engine->load().orphaned_bytes, 0);
}

TEST(EnginePrefillTest, CancelDuringAStepAbortsTheSinkAfterTheStep) {
  EngineHarness harness(TestOptions(Role::kPrefill));
  const auto log = std::make_shared<SinkLog>(/*answers_at_once=*/false);
  harness.control->Hold();
  const auto listener = harness.Submit("p", MakePrompt(40), GreedyParams(2), log);
  harness.control->AwaitHeld();
  harness.engine->Cancel("p", absl::AbortedError("retry elsewhere"));
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_EQ(listener->status().code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(log->aborted());
  EXPECT_LT(harness.engine->load().pages_free, harness.engine->load().pages_total);
  harness.control->Release();
  ASSERT_TRUE(log->AwaitEnd());
  EXPECT_TRUE(log->aborted());
  EXPECT_EQ(log->abort_reason().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(log->calls(), SizeIs(2)) << "the step in flight ships, later chunks do not";
  EXPECT_LT(harness.engine->load().pages_free, harness.engine->load().pages_total);
  log->Answer(absl::OkStatus(), 0);
  EXPECT_EQ(log->errors(), 0);
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

TEST(EnginePrefillTest, AFailedStepAbortsTheSink) {
  EngineHarness harness(TestOptions(Role::kPrefill));
  const auto log = std::make_shared<SinkLog>();
  harness.control->FailNext(absl::InternalError("boom"));
  const auto listener = harness.Submit("p", MakePrompt(8), GreedyParams(2), log);
  ASSERT_TRUE(listener->AwaitDone());
  EXPECT_EQ(listener->status().code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(log->AwaitEnd());
  EXPECT_TRUE(log->aborted());
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

TEST(EnginePrefillTest, OneRunningSlotPerRequestWhateverN) {
  EngineOptions options = TestOptions(Role::kPrefill);
  options.max_running_sequences = 1;
  EngineHarness harness(options);
  const auto slow = std::make_shared<SinkLog>(/*answers_at_once=*/false);
  SamplingParams params = GreedyParams(2);
  params.n = 4;
  const auto first = harness.Submit("a", MakePrompt(8), params, slow);
  ASSERT_TRUE(slow->AwaitEnd());
  const auto log = std::make_shared<SinkLog>();
  const auto second = harness.Submit("b", MakePrompt(8), params, log);
  EXPECT_TRUE(Eventually([&] { return harness.engine->load().waiting_requests == 1; }));
  EXPECT_EQ(harness.engine->load().running_sequences, 1);
  slow->Answer(absl::OkStatus(), 0);
  ASSERT_TRUE(second->AwaitDone());
  EXPECT_TRUE(second->status().ok());
}

TEST(EnginePrefillTest, ASinkThatAnswersAfterTheEngineIsGoneFindsItsMemory) {
  const auto log = std::make_shared<SinkLog>(/*answers_at_once=*/false);
  std::shared_ptr<RecordingListener> listener;
  std::thread late;
  {
    EngineHarness harness(TestOptions(Role::kPrefill));
    listener = harness.Submit("p", MakePrompt(8), GreedyParams(2), log);
    ASSERT_TRUE(log->AwaitEnd());
    late = std::thread([&] {
      listener->AwaitDone();
      log->Answer(absl::OkStatus(), 0);
    });
  }
  late.join();
  EXPECT_EQ(listener->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(log->errors(), 0);
}

// Catalogue T3: a refused request never reaches its peer.
TEST(EnginePrefillTest, ASinkIsOpenedForAnAdmittedRequestOnly) {
  EngineHarness harness(TestOptions(Role::kPrefill));
  const auto log = std::make_shared<SinkLog>(/*answers_at_once=*/false);
  int opened = 0;
  const auto submit = [&](int32_t max_tokens) {
    GenerateRequest request;
    request.request_id = "p";
    request.prompt = MakePrompt(8);
    request.sampling = GreedyParams(max_tokens);
    request.open_sink = [&] {
      ++opened;
      return std::make_unique<FakeSink>(log);
    };
    return harness.engine->Submit(std::move(request), std::make_shared<RecordingListener>());
  };
  EXPECT_TRUE(absl::IsInvalidArgument(submit(0)));
  EXPECT_EQ(opened, 0);
  EXPECT_TRUE(submit(2).ok());
  EXPECT_EQ(opened, 1);
  ASSERT_TRUE(log->AwaitEnd());
  EXPECT_TRUE(absl::IsAlreadyExists(submit(2))) << "the first one is still handing over";
  EXPECT_EQ(opened, 1);
  log->Answer(absl::OkStatus(), 0);
  EXPECT_TRUE(Eventually([&] { return harness.AtBaseline(); }));
}

}  // namespace
}  // namespace baton::engine
