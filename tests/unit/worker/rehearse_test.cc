// What a worker asks of its engine before it serves, and that nothing of it stays.
#include "common/worker/rehearse.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/model_config.h"
#include "common/engine/engine.h"
#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "common/model/forward.h"
#include "common/model/model.h"
#include "tests/unit/engine/eventually.h"
#include "tests/unit/engine/real_engine.h"
#include "tests/unit/handoff/fake_engine.h"

namespace baton::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kVocabulary = 50;

// A configuration and no more.
class ModelOfConfig final : public model::Model {
 public:
  ModelOfConfig(int32_t max_positions, bool swiftkv) {
    config_.vocab_size = kVocabulary;
    config_.max_position_embeddings = max_positions;
    config_.num_layers = 2;
    config_.num_key_value_layers = swiftkv ? 1 : 2;
  }
  const checkpoint::ModelConfig& config() const override { return config_; }
  model::KvShape kv_shape() const override { return {}; }
  uint64_t fingerprint() const override { return 0; }
  absl::Status Forward(const model::ForwardBatch& /*batch*/, std::span<float> /*logits*/) override {
    return absl::UnimplementedError("not faked");
  }

 private:
  checkpoint::ModelConfig config_;
};

// Writes down what is asked of it, as "POLICY TOKENS", and answers at once.
class AskedEngine final : public handoff::FakeEngine {
 public:
  explicit AskedEngine(engine::Role role, int32_t max_positions = 8192, bool swiftkv = false)
      : model_(max_positions, swiftkv) {
    options_.role = role;
    options_.prefill_chunk_tokens = 2048;
  }

  absl::Status Submit(engine::GenerateRequest request,
                      std::shared_ptr<engine::RequestListener> listener) override {
    asked_.push_back(absl::StrCat(request.kv_policy, " ", request.prompt.size()));
    EXPECT_TRUE(std::ranges::all_of(request.prompt,
                                    [](int32_t id) { return id >= 0 && id < kVocabulary; }));
    EXPECT_EQ(request.sink != nullptr, options_.role == engine::Role::kPrefill);
    if (request.kv_policy == refused_) {
      return absl::InvalidArgumentError("refused");
    }
    absl::Status status =
        request.kv_policy == failed_ ? absl::InternalError("failed") : absl::OkStatus();
    if (request.sink != nullptr) {
      EXPECT_TRUE(request.sink->reads_devices());
      request.sink->LayersReady({});
      request.sink->Commit({}, [&](const absl::Status& committed, int64_t /*wire_bytes*/) {
        status.Update(committed);
      });
    }
    listener->OnDone(status, {});
    return absl::OkStatus();
  }
  std::vector<std::string> kv_formats() const override { return {"dense", "diffkv", "shadowkv"}; }
  const model::Model& model() const override { return model_; }
  const engine::EngineOptions& options() const override { return options_; }

  void Refuse(std::string policy) { refused_ = std::move(policy); }
  void Fail(std::string policy) { failed_ = std::move(policy); }
  const std::vector<std::string>& asked() const { return asked_; }

 private:
  ModelOfConfig model_;
  engine::EngineOptions options_;
  std::string refused_;
  std::string failed_;
  std::vector<std::string> asked_;
};

TEST(RehearseTest, EveryLengthIsComputedInTheFirstFormatAndTheLongestInTheOthers) {
  AskedEngine both(engine::Role::kBoth);
  Rehearse(both);
  EXPECT_THAT(both.asked(),
              ElementsAre("dense 2048", "dense 1024", "dense 512", "diffkv 2048", "shadowkv 2048"));
}

TEST(RehearseTest, PrefillOfASwiftKvModelComputesHiddenStatesToo) {
  AskedEngine prefill(engine::Role::kPrefill, 8192, /*swiftkv=*/true);
  Rehearse(prefill);
  EXPECT_THAT(prefill.asked(),
              ElementsAre("dense 2048",
                          "dense 1024",
                          "dense 512",
                          "diffkv 2048",
                          "shadowkv 2048",
                          "hidden+dense 2048"));
}

TEST(RehearseTest, PromptsAndTheirAnswersFitTheModel) {
  AskedEngine both(engine::Role::kBoth, /*max_positions=*/300);
  Rehearse(both);
  EXPECT_THAT(both.asked(), ElementsAre("dense 296", "diffkv 296", "shadowkv 296"));
}

TEST(RehearseTest, WhatIsRefusedOrFailsIsLeftOut) {
  AskedEngine both(engine::Role::kBoth, /*max_positions=*/300);
  both.Refuse("dense");
  both.Fail("diffkv");
  Rehearse(both);
  EXPECT_THAT(both.asked(), ElementsAre("dense 296", "diffkv 296", "shadowkv 296"));
}

TEST(RehearseTest, DecodeHasNothingToRehearse) {
  AskedEngine decode(engine::Role::kDecode);
  Rehearse(decode);
  EXPECT_THAT(decode.asked(), IsEmpty());
}

class RehearsalTest : public testing::TestWithParam<engine::Role> {
 protected:
  static bool PoolsAreFree(const engine::RealEngine& worker) {
    return std::ranges::all_of(
        worker.engine->load().format_pools,
        [](const engine::FormatPool& pool) { return pool.bytes.free == pool.bytes.total; });
  }
};

TEST_P(RehearsalTest, LeavesNothingInTheEngine) {
  const auto checkpoint = checkpoint::Checkpoint::Open(
      BATON_SOURCE_DIR "/tests/data/models/tiny-llama-needle-swiftkv-l6", {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  engine::RealEngine worker(**checkpoint,
                            GetParam(),
                            /*chunk=*/600,
                            /*budget=*/600,
                            {.fp8_bytes = 8 << 20,
                             .diffkv_bytes = 8 << 20,
                             .shadowkv_bytes = 16 << 20,
                             .hidden_bytes = 1 << 20});
  Rehearse(*worker.engine);
  EXPECT_TRUE(engine::Eventually([&] { return worker.AtBaseline() && PoolsAreFree(worker); }));
  const engine::EngineLoad load = worker.engine->load();
  EXPECT_GE(load.steps, 5);  // a prompt of each format, and a shorter one
  EXPECT_EQ(load.kept_sessions, 0);
  EXPECT_EQ(load.orphaned_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(Roles,
                         RehearsalTest,
                         testing::Values(engine::Role::kBoth, engine::Role::kPrefill),
                         [](const auto& role) {
                           return role.param == engine::Role::kBoth ? "both" : "prefill";
                         });

}  // namespace
}  // namespace baton::worker
