// A model that only takes time: what its speed is told by, and what it does to KV.
#include "common/model/simulated_model.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/fake_clock.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/model_config.h"
#include "common/kv/codec/step_kv.h"
#include "common/model/forward.h"
#include "common/model/model.h"
#include "common/model/simulation.h"
#include "kernels/core/buffer.h"
#include "kernels/core/step_arrays.h"
#include "kernels/core/thread_pool.h"
#include "kernels/reference/reference_ops.h"
#include "tests/unit/model/test_checkpoint.h"

namespace baton::model {
namespace {

using checkpoint::Architecture;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(SimulationTest, KeysThatAreMissingKeepTheirDefaults) {
  const auto simulation = ParseSimulation("prefill_tps=100,decode_seq_ms=0.5");
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_EQ(simulation->prefill_tokens_per_second, 100);
  EXPECT_EQ(simulation->decode_sequence, absl::Microseconds(500));
  EXPECT_EQ(simulation->prefill_step, Simulation().prefill_step);
  EXPECT_EQ(simulation->decode_step, Simulation().decode_step);
  EXPECT_EQ(ParseSimulation("default")->decode_step, Simulation().decode_step);
}

TEST(SimulationTest, ErrorsNameTheKey) {
  const auto message = [](std::string_view text) {
    return std::string(ParseSimulation(text).status().message());
  };
  EXPECT_THAT(message("speed=3"), HasSubstr("'speed' is no key"));
  EXPECT_THAT(message("decode_ms"), HasSubstr("decode_ms is ''"));
  EXPECT_THAT(message("decode_ms=-1"), HasSubstr("decode_ms is '-1'"));
  EXPECT_THAT(message("prefill_ms=nan"), HasSubstr("prefill_ms is 'nan'"));
  EXPECT_THAT(message("prefill_tps=0"), HasSubstr("prefill_tps is '0'"));
  EXPECT_THAT(message("decode_ms=1,decode_ms=2"), HasSubstr("twice"));
  EXPECT_THAT(message(""), HasSubstr("'' is no key"));
}

TEST(SimulationTest, AStepTakesTheTimeOfItsPromptTokensAndOfItsSequences) {
  const Simulation simulation = {.prefill_step = absl::Milliseconds(5),
                                 .prefill_tokens_per_second = 1'000,
                                 .decode_step = absl::Milliseconds(10),
                                 .decode_sequence = absl::Milliseconds(1)};
  EXPECT_EQ(simulation.StepTime(0, 0), absl::ZeroDuration());
  EXPECT_EQ(simulation.StepTime(100, 0), absl::Milliseconds(105));
  EXPECT_EQ(simulation.StepTime(0, 4), absl::Milliseconds(14));
  EXPECT_EQ(simulation.StepTime(100, 4), absl::Milliseconds(119));
}

// Notes the calls; thread-safe.
class RecordingKv final : public kv::StepKv {
 public:
  absl::Status Prepare(std::span<const kv::KvRows> tiles, kernels::StepArrays&) override {
    for (const kv::KvRows& tile : tiles) {
      BATON_RETURN_IF_ERROR(Note("rows", tile.rows));
    }
    return absl::OkStatus();
  }
  absl::Status Write(const kv::KvRows&, const kv::KvEntries& entries) override {
    return Note("write", entries.kv_layer);
  }
  absl::Status Attend(const kv::KvRows&, const kv::KvQueries& queries) override {
    return Note("attend", queries.kv_layer);
  }
  absl::Status WriteHidden(const kv::KvRows& rows, const void*, int64_t) override {
    return Note("hidden", rows.rows);
  }
  absl::Status LayersWritten(int32_t layer_begin, int32_t layer_end) override {
    return Note("written", layer_begin * 10 + layer_end);
  }
  absl::Status LayerAttended(int32_t layer) override { return Note("attended", layer); }

  std::vector<std::string> calls() const {
    absl::MutexLock lock(&mutex_);
    return calls_;
  }
  void AwaitCalls(size_t count) const {
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return calls_.size() >= count;
    };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&enough));
  }

 private:
  absl::Status Note(const std::string& call, int32_t value) {
    absl::MutexLock lock(&mutex_);
    calls_.push_back(call + " " + std::to_string(value));
    return absl::OkStatus();
  }

  mutable absl::Mutex mutex_;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
};

class SimulatedModelTest : public testing::Test {
 protected:
  std::unique_ptr<Model> Make(const checkpoint::ModelConfig& config) {
    auto model = SimulatedModel::Create({.config = config,
                                         .fingerprint = 1,
                                         .ops = &kernels::ReferenceOps(),
                                         .exec = {.pool = &pool_, .workspace = &workspace_},
                                         .options = {.max_step_rows = 64},
                                         .simulation = {.prefill_step = absl::Seconds(1),
                                                        .prefill_tokens_per_second = 10,
                                                        .decode_step = absl::Seconds(100),
                                                        .decode_sequence = absl::Seconds(10)},
                                         .clock = &clock_});
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }
  // A step of one sequence with `rows` rows, of which the last one has logits.
  absl::Status Step(Model& model, int32_t rows) {
    const std::vector<int32_t> tokens(static_cast<size_t>(rows), 3);
    std::vector<int32_t> positions(tokens.size());
    for (size_t i = 0; i < positions.size(); ++i) {
      positions[i] = static_cast<int32_t>(i);
    }
    const SequenceSlice slice = {.row_begin = 0, .row_count = rows};
    const int32_t last = rows - 1;
    return model.Forward({.token_ids = tokens,
                          .positions = positions,
                          .sequences = std::span(&slice, 1),
                          .survivors = std::span(&last, 1),
                          .logit_rows = std::span(&last, 1),
                          .kv = &kv_,
                          .on_hidden = {}},
                         {});
  }

  kernels::ThreadPool pool_{1};
  kernels::Buffer workspace_;
  FakeClock clock_;
  RecordingKv kv_;
};

TEST_F(SimulatedModelTest, APromptIsWrittenLayerByLayerThroughItsTime) {
  const auto model = Make(SmallConfig(Architecture::kLlama, 2));
  std::thread step([&] { EXPECT_TRUE(Step(*model, 30).ok()); });  // 1 s + 30 / 10 s
  kv_.AwaitCalls(2);
  EXPECT_THAT(kv_.calls(), ElementsAre("rows 30", "write 0"));
  clock_.Advance(absl::Seconds(2));
  kv_.AwaitCalls(5);
  EXPECT_THAT(kv_.calls(), ElementsAre("rows 30", "write 0", "written 1", "attended 0", "write 1"));
  clock_.Advance(absl::Seconds(2));
  step.join();
  EXPECT_THAT(kv_.calls(), testing::SizeIs(7));
}

TEST_F(SimulatedModelTest, ADecodeStepEndsAfterItsTime) {
  const auto model = Make(SmallConfig(Architecture::kLlama, 2));
  std::thread step([&] { EXPECT_TRUE(Step(*model, 1).ok()); });
  kv_.AwaitCalls(7);
  clock_.Advance(absl::Seconds(110));
  step.join();
}

TEST_F(SimulatedModelTest, UpperLayersAreWrittenFromHiddenStates) {
  const auto model = Make(SmallSwiftKvConfig(Architecture::kLlama, 6, 2, 2));
  clock_.Advance(absl::Hours(1));
  std::thread step([&] { EXPECT_TRUE(Step(*model, 10).ok()); });
  kv_.AwaitCalls(2);
  clock_.Advance(absl::Seconds(2));
  step.join();
  EXPECT_THAT(kv_.calls(),
              ElementsAre("rows 10",
                          "write 0",
                          "written 1",
                          "attended 0",
                          "write 1",
                          "written 12",
                          "attended 1",
                          "hidden 10",
                          "write 2",
                          "write 3",
                          "written 24",
                          "attended 2",
                          "attended 3"));
}

TEST_F(SimulatedModelTest, ABatchThatDoesNotFitIsRefused) {
  const auto model = Make(SmallConfig(Architecture::kLlama, 2));
  EXPECT_EQ(Step(*model, 65).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(kv_.calls(), IsEmpty());
}

TEST_F(SimulatedModelTest, ItIsNotTakenForTheRealModel) {
  const auto checkpoint = MakeTestCheckpoint(SmallConfig(Architecture::kLlama, 2), 1);
  const auto load = [&](std::optional<Simulation> simulation) {
    return *Model::Load(*checkpoint,
                        kernels::ReferenceOps(),
                        {.pool = &pool_, .workspace = &workspace_},
                        {.simulation = simulation});
  };
  const auto real = load({});
  const auto simulated = load(Simulation());
  EXPECT_NE(real->fingerprint(), simulated->fingerprint());
  EXPECT_EQ(real->kv_shape(), simulated->kv_shape());
  EXPECT_TRUE(real->has_logits());
  EXPECT_FALSE(simulated->has_logits());
}

}  // namespace
}  // namespace baton::model
