#include "common/engine/step_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/engine/active_request.h"
#include "common/engine/page_plan.h"
#include "common/kv/codec/dense_format.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/policy_params.h"
#include "common/kv/pool/page_pool.h"
#include "common/scheduling/step_planner.h"
#include "kernels/core/dtype.h"
#include "tests/unit/engine/fake_sink.h"

namespace baton::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Dense in every respect but its observation window.
class WindowFormat final : public kv::KvFormat {
 public:
  WindowFormat(const kv::KvFormat& dense, int32_t window) : dense_(dense), window_(window) {}
  kv::KvFormatId id() const override { return dense_.id(); }
  uint16_t version() const override { return dense_.version(); }
  int32_t observation_window() const override { return window_; }
  int32_t page_tables() const override { return dense_.page_tables(); }
  int32_t PagesPerTable(int64_t tokens) const override { return dense_.PagesPerTable(tokens); }
  int32_t tokens_per_page() const override { return dense_.tokens_per_page(); }
  size_t page_bytes() const override { return dense_.page_bytes(); }
  size_t stride_bytes() const override { return dense_.stride_bytes(); }
  int32_t FinalPages(int64_t computed, int64_t prompt) const override {
    return dense_.FinalPages(computed, prompt);
  }

 private:
  const kv::KvFormat& dense_;
  int32_t window_;
};

// Takes no memory; only the window matters here.
class EncodedWindow final : public kv::EncodedFormat {
 public:
  explicit EncodedWindow(int32_t window) : window_(window) {}
  kv::KvFormatId id() const override { return kv::KvFormatId::kDiffKv; }
  uint16_t version() const override { return 1; }
  absl::Status Check(const kv::KvResidentPolicy&, int64_t, int64_t, int32_t) const override {
    return absl::OkStatus();
  }
  bool PrefersDense(const kv::KvResidentPolicy&, int64_t) const override { return false; }
  int32_t observation_window(const kv::KvResidentPolicy&) const override { return window_; }
  kv::WindowShape window(const kv::KvResidentPolicy&, int64_t) const override { return {}; }
  std::unique_ptr<kv::EncodedKv> Allocate(const kv::KvResidentPolicy&, int64_t, int64_t) override {
    return nullptr;
  }
  bool Extend(kv::EncodedKv&, int64_t, int64_t) override { return false; }
  kv::PoolBytes pool() const override { return {}; }

 private:
  int32_t window_;
};

class StepBuilderTest : public testing::Test {
 protected:
  ActiveRequest& AddRequest(int64_t prompt_tokens, int32_t n = 1) {
    requests_.push_back(std::make_unique<ActiveRequest>());
    ActiveRequest& request = *requests_.back();
    request.serial = requests_.size();
    request.prompt.resize(static_cast<size_t>(prompt_tokens));
    std::iota(request.prompt.begin(), request.prompt.end(), 100 * static_cast<int>(request.serial));
    request.prompt_tokens = prompt_tokens;
    request.sampling.n = n;
    request.sampling.max_tokens = 4;
    EXPECT_TRUE(AllocateSequences(PlanPages(*format_, prompt_tokens, n, 4, true), *pool_, request));
    return request;
  }
  void TearDown() override {
    for (const auto& request : requests_) {
      ReleaseSequences(*pool_, *request);
    }
  }
  static scheduling::PrefillChunk Chunk(const ActiveRequest& request,
                                        int64_t begin,
                                        int32_t count) {
    return {.prompt_index = 0,
            .token_begin = begin,
            .token_count = count,
            .is_final = begin + count == request.prompt_tokens};
  }

  std::unique_ptr<kv::DenseFormat> format_ =
      *kv::DenseFormat::Create({.layers = 2, .kv_heads = 1, .head_dim = 8},
                               {.page_tokens = 4, .dtype = kernels::DType::kF32});
  std::unique_ptr<kv::PagePool> pool_ = *kv::PagePool::Create(1 << 16, format_->stride_bytes());
  std::vector<std::unique_ptr<ActiveRequest>> requests_;
};

TEST_F(StepBuilderTest, PacksDecodeRowsAndChunksWithoutPadding) {
  ActiveRequest& decoding = AddRequest(5);
  decoding.sequences[0].computed_tokens = 5;
  decoding.sequences[0].next_token = 77;
  ActiveRequest& prompt = AddRequest(3);
  StepBuilder builder(9, *format_);
  builder.AddDecodeRow(decoding, decoding.sequences[0]);
  builder.AddPrefillChunk(prompt, Chunk(prompt, 0, 3));
  const auto step = builder.Build();
  EXPECT_EQ(step->number, 9u);
  EXPECT_THAT(step->token_ids, ElementsAre(77, 200, 201, 202));
  EXPECT_THAT(step->positions, ElementsAre(5, 0, 1, 2));
  EXPECT_THAT(step->survivors, ElementsAre(0, 3));
  EXPECT_THAT(step->logit_rows, ElementsAre(0, 3));
  ASSERT_THAT(step->slices, SizeIs(2));
  EXPECT_EQ(step->slices[1].row_begin, 1);
  EXPECT_EQ(step->slices[1].row_count, 3);
  ASSERT_THAT(step->samples, SizeIs(2));
  EXPECT_EQ(step->samples[0].input.key.position, 6);
  EXPECT_EQ(step->samples[1].input.key.position, 3);
  EXPECT_EQ(step->decode_tokens, 1);
  EXPECT_EQ(step->prefill_tokens, 3);
  EXPECT_EQ(decoding.steps_in_flight, 1);
}

TEST_F(StepBuilderTest, AChunkThatDoesNotEndThePromptWantsNoLogits) {
  ActiveRequest& prompt = AddRequest(10);
  StepBuilder builder(1, *format_);
  builder.AddPrefillChunk(prompt, Chunk(prompt, 0, 6));
  const auto step = builder.Build();
  EXPECT_THAT(step->survivors, IsEmpty());
  EXPECT_THAT(step->logit_rows, IsEmpty());
  EXPECT_THAT(step->samples, IsEmpty());
}

TEST_F(StepBuilderTest, TheObservationWindowSurvivesInWhicheverChunkItFalls) {
  const WindowFormat format(*format_, 4);
  ActiveRequest& prompt = AddRequest(10);
  StepBuilder first(1, format);
  first.AddPrefillChunk(prompt, Chunk(prompt, 0, 8));
  EXPECT_THAT(first.Build()->survivors, ElementsAre(6, 7));
  StepBuilder second(2, format);
  second.AddPrefillChunk(prompt, Chunk(prompt, 8, 2));
  EXPECT_THAT(second.Build()->survivors, ElementsAre(0, 1));
}

TEST_F(StepBuilderTest, APromptShorterThanTheWindowSurvivesWhole) {
  const WindowFormat format(*format_, 64);
  ActiveRequest& prompt = AddRequest(3);
  StepBuilder builder(1, format);
  builder.AddPrefillChunk(prompt, Chunk(prompt, 0, 3));
  EXPECT_THAT(builder.Build()->survivors, ElementsAre(0, 1, 2));
}

TEST_F(StepBuilderTest, ChunksShipWhatTheyMakeFinal) {
  ActiveRequest& prompt = AddRequest(10);
  StepBuilder builder(1, *format_);
  for (const auto& [begin, count] : {std::pair{0, 3}, {3, 3}, {6, 4}}) {
    builder.AddPrefillChunk(prompt, Chunk(prompt, begin, count));
  }
  const auto step = builder.Build();
  const auto& ship = step->sequences;
  EXPECT_EQ(ship[0].ship.page_begin, 0);
  EXPECT_EQ(ship[0].ship.page_end, 0);
  EXPECT_EQ(ship[1].ship.page_end, 1);
  EXPECT_EQ(ship[2].ship.page_begin, 1);
  EXPECT_EQ(ship[2].ship.page_end, 3);
}

TEST_F(StepBuilderTest, AnEncodedPromptIsObservedByItsFormatAndShipsNoDensePages) {
  EncodedWindow format(7);
  ActiveRequest& prompt = AddRequest(10);
  prompt.kv.encoded = &format;
  prompt.sink = std::make_unique<FakeSink>(std::make_shared<SinkLog>());
  StepBuilder first(1, *format_);
  first.AddPrefillChunk(prompt, Chunk(prompt, 0, 5));
  const auto begin = first.Build();
  EXPECT_THAT(begin->survivors, ElementsAre(3, 4));
  StepBuilder second(2, *format_);
  second.AddPrefillChunk(prompt, Chunk(prompt, 5, 5));
  const auto end = second.Build();
  EXPECT_THAT(end->survivors, ElementsAre(0, 1, 2, 3, 4));
  for (const auto& step : {begin.get(), end.get()}) {
    EXPECT_EQ(step->sequences[0].ship.sink, prompt.sink.get());
    EXPECT_EQ(step->sequences[0].ship.page_begin, step->sequences[0].ship.page_end);
  }
  EXPECT_FALSE(begin->sequences[0].completes_prompt);
  EXPECT_TRUE(end->sequences[0].completes_prompt);
}

TEST_F(StepBuilderTest, AStepCountsOnceForARequestWithTwoChunksInIt) {
  ActiveRequest& prompt = AddRequest(10);
  StepBuilder builder(1, *format_);
  builder.AddPrefillChunk(prompt, Chunk(prompt, 0, 4));
  builder.AddPrefillChunk(prompt, Chunk(prompt, 4, 6));
  const auto step = builder.Build();
  EXPECT_EQ(prompt.steps_in_flight, 1);
}

TEST_F(StepBuilderTest, NFirstTokensComeFromOneRowOfLogits) {
  ActiveRequest& prompt = AddRequest(3, 4);
  StepBuilder builder(1, *format_);
  builder.AddPrefillChunk(prompt, Chunk(prompt, 0, 3));
  const auto step = builder.Build();
  EXPECT_THAT(step->logit_rows, SizeIs(1));
  ASSERT_THAT(step->samples, SizeIs(4));
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(step->samples[static_cast<size_t>(i)].logit_row, 0);
    EXPECT_EQ(step->samples[static_cast<size_t>(i)].input.key.sequence_index, i);
  }
}

}  // namespace
}  // namespace baton::engine
