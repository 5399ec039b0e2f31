// The engine over real models: the same tokens from one engine, from two, and whatever the chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/engine/sampling_params.h"
#include "kernels/core/dtype.h"
#include "tests/kernels/device_double/device_double.h"
#include "tests/kernels/device_double/guarded_memory.h"
#include "tests/unit/engine/copy_sink.h"
#include "tests/unit/engine/real_engine.h"
#include "tests/unit/engine/recording_listener.h"

namespace baton::engine {
namespace {

constexpr int32_t kPromptTokens = 300;
constexpr int32_t kMaxTokens = 24;

std::vector<int32_t> Prompt(int32_t salt, int32_t vocab) {
  std::vector<int32_t> prompt(static_cast<size_t>(kPromptTokens - salt * 13));
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<int32_t>((i * i * 31 + i * 7 + static_cast<size_t>(salt) * 101) %
                                     static_cast<size_t>(vocab));
  }
  return prompt;
}

SamplingParams Params(int32_t salt) {
  SamplingParams params;
  params.temperature = salt % 2 == 0 ? 0.0f : 0.8f;
  params.seed = static_cast<uint64_t>(salt);
  params.max_tokens = kMaxTokens;
  params.n = salt == 3 ? 3 : 1;
  return params;
}

std::shared_ptr<RecordingListener> Generate(Engine& engine, int32_t salt) {
  auto listener = std::make_shared<RecordingListener>();
  GenerateRequest request;
  request.request_id = std::to_string(salt);
  request.prompt = Prompt(salt, engine.model().config().vocab_size);
  request.sampling = Params(salt);
  const absl::Status status = engine.Submit(std::move(request), listener);
  EXPECT_TRUE(status.ok()) << status;
  return listener;
}

class EngineModelTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto opened =
        checkpoint::Checkpoint::Open(BATON_SOURCE_DIR "/tests/data/models/" + GetParam(), {});
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = *std::move(opened);
    RealEngine one(*checkpoint_, Role::kBoth, kPromptTokens, 512);
    for (int32_t salt = 0; salt < 4; ++salt) {
      expected_.push_back(Generate(*one.engine, salt));
      ASSERT_TRUE(expected_.back()->AwaitDone());
      ASSERT_TRUE(expected_.back()->status().ok()) << expected_.back()->status();
      ASSERT_EQ(expected_.back()->tokens().size(), static_cast<size_t>(kMaxTokens));
    }
  }

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  std::vector<std::shared_ptr<RecordingListener>> expected_;
};

TEST_P(EngineModelTest, ChunksAndBatchesDoNotChangeTokens) {
  RealEngine engine(*checkpoint_, Role::kBoth, /*chunk=*/37, /*budget=*/100);
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  listeners.reserve(4);
  for (int32_t salt = 0; salt < 4; ++salt) {
    listeners.push_back(Generate(*engine.engine, salt));
  }
  for (size_t i = 0; i < listeners.size(); ++i) {
    ASSERT_TRUE(listeners[i]->AwaitDone());
    for (int32_t n = 0; n < 3; ++n) {
      EXPECT_EQ(listeners[i]->tokens(n), expected_[i]->tokens(n)) << i << " " << n;
    }
  }
}

// Prompts of all lengths, copies of shared pages, and every array that a step uploads.
TEST_P(EngineModelTest, ADeviceGivesTheTokensOfTheHost) {
  {
    RealEngine engine(*checkpoint_,
                      Role::kBoth,
                      /*chunk=*/37,
                      /*budget=*/100,
                      {},
                      kernels::DeviceDoubleOps(kernels::DType::kF32),
                      kernels::GuardedMemory::Get());
    std::vector<std::shared_ptr<RecordingListener>> listeners;
    listeners.reserve(4);
    for (int32_t salt = 0; salt < 4; ++salt) {
      listeners.push_back(Generate(*engine.engine, salt));
    }
    for (size_t i = 0; i < listeners.size(); ++i) {
      ASSERT_TRUE(listeners[i]->AwaitDone());
      EXPECT_TRUE(listeners[i]->status().ok()) << listeners[i]->status();
      for (int32_t n = 0; n < 3; ++n) {
        EXPECT_EQ(listeners[i]->tokens(n), expected_[i]->tokens(n)) << i << " " << n;
      }
    }
  }
  EXPECT_EQ(kernels::GuardedMemory::Get().blocks(), 0);
}

TEST_P(EngineModelTest, PrefillAndDecodeEnginesGiveTheTokensOfOne) {
  RealEngine decode(*checkpoint_, Role::kDecode, 64, 64);
  RealEngine prefill(*checkpoint_, Role::kPrefill, 64, 128);
  for (int32_t salt = 0; salt < 4; ++salt) {
    const auto tail = std::make_shared<RecordingListener>();
    const auto head = std::make_shared<RecordingListener>();
    GenerateRequest request;
    request.request_id = std::to_string(salt);
    request.prompt = Prompt(salt, decode.engine->model().config().vocab_size);
    request.sampling = Params(salt);
    ReserveRequest reserve;
    reserve.request_id = request.request_id;
    reserve.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    reserve.sampling = request.sampling;
    ASSERT_TRUE(decode.engine
                    ->Reserve(std::move(reserve),
                              tail,
                              [&](absl::StatusOr<ReservationGrant> grant) {
                                ASSERT_TRUE(grant.ok()) << grant.status();
                                request.sink =
                                    std::make_unique<CopySink>(*decode.engine, *std::move(grant));
                                const absl::Status status =
                                    prefill.engine->Submit(std::move(request), head);
                                EXPECT_TRUE(status.ok()) << status;
                              })
                    .ok());
    ASSERT_TRUE(tail->AwaitDone());
    ASSERT_TRUE(head->AwaitDone());
    EXPECT_TRUE(tail->status().ok()) << tail->status();
    for (int32_t n = 0; n < Params(salt).n; ++n) {
      std::vector<int32_t> tokens = head->tokens(n);
      const std::vector<int32_t> rest = tail->tokens(n);
      tokens.insert(tokens.end(), rest.begin(), rest.end());
      EXPECT_EQ(tokens, expected_[static_cast<size_t>(salt)]->tokens(n)) << salt << " " << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models,
                         EngineModelTest,
                         testing::Values("tiny-llama-needle",
                                         "tiny-llama-needle-swiftkv-l6-across2"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace baton::engine
