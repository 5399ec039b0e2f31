// Keys and values of a SwiftKV model's upper layers are made while hidden states land: the answer
// of a prompt that lands at once, whatever came before.
#include <gtest/gtest.h>

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "tests/unit/engine/eventually.h"
#include "tests/unit/engine/fake_sink.h"
#include "tests/unit/engine/host_answer.h"
#include "tests/unit/engine/landing_prompt.h"
#include "tests/unit/engine/placed_engine.h"
#include "tests/unit/engine/split_run.h"

namespace baton::engine {
namespace {

constexpr char kModel[] = "tiny-llama-needle-swiftkv-l6";
// Of 300 tokens: four whole ones before the last, of two pages of hidden states each.
constexpr int32_t kChunk = 64;
constexpr int32_t kChunkPages = 2;

class EngineHiddenLandingTest : public testing::TestWithParam<std::tuple<std::string, Place>> {
 protected:
  static const std::string& policy() { return std::get<0>(GetParam()); }

  LandingPrompt Reserve() const {
    return LandingPrompt(decode_.engine(), ReserveFor(MakeRequest(policy(), 0)), *log_);
  }
  // So many steps have run, and nothing is left to do.
  bool Steps(int64_t count) const {
    return Eventually([&] {
      const EngineLoad load = decode_.engine().load();
      return load.steps == count && !load.has_work;
    });
  }
  void ExpectAnswer(const LandingPrompt& prompt, uint32_t attempt) const {
    prompt.LandAll();
    ExpectCommitted(decode_, prompt, attempt, *log_->committed(), first_, want_);
  }

  const std::unique_ptr<checkpoint::Checkpoint> checkpoint_ = OpenModel(kModel);
  const HostAnswer want_ = AnswersOfTheHost(*checkpoint_, policy(), 1).front();
  const std::shared_ptr<SinkLog> log_ = std::make_shared<SinkLog>();
  const std::vector<int32_t> first_ = PrefillToLog(*checkpoint_, policy(), kChunk, log_);
  const PlacedEngine decode_{*checkpoint_, Role::kDecode, std::get<1>(GetParam()), kChunk};
};

TEST_P(EngineHiddenLandingTest, KvIsMadeWhileTheRestIsOnItsWay) {
  const LandingPrompt prompt = Reserve();
  ASSERT_TRUE(prompt.Begin(1).ok());
  prompt.LandHidden(1, 1);  // half of a chunk
  EXPECT_TRUE(Steps(0));
  prompt.LandHidden(1, kChunkPages + 1);
  EXPECT_TRUE(Steps(1));
  prompt.LandHidden(1, 3 * kChunkPages);
  EXPECT_TRUE(Steps(3));
  ExpectAnswer(prompt, 1);
}

TEST_P(EngineHiddenLandingTest, TheLastTokensWaitForTheCommit) {
  const LandingPrompt prompt = Reserve();
  ASSERT_TRUE(prompt.Begin(1).ok());
  prompt.LandHidden(1, prompt.grant().hidden_pages);
  EXPECT_TRUE(Steps(4));
  ExpectAnswer(prompt, 1);
}

TEST_P(EngineHiddenLandingTest, NothingOfAnAttemptThatIsOverIsLeft) {
  int64_t steps = 0;
  for (const bool awaits_steps : {true, false}) {
    const LandingPrompt prompt = Reserve();
    ASSERT_TRUE(prompt.Begin(1).ok());
    prompt.LandHidden(1, 3 * kChunkPages, /*damaged=*/true);
    if (awaits_steps) {
      EXPECT_TRUE(Steps(steps + 3));
    }
    // It comes when no step reads what the first one has landed.
    ASSERT_TRUE(prompt.Begin(2).ok());
    EXPECT_TRUE(Eventually([&] { return !decode_.engine().load().has_work; }));
    steps = decode_.engine().load().steps;
    decode_.engine().HiddenLanded(
        prompt.grant().reservation_id, prompt.grant().epoch, 1, 4 * kChunkPages);
    EXPECT_TRUE(Steps(steps));
    prompt.LandHidden(2, 2 * kChunkPages);
    EXPECT_TRUE(Steps(steps + 2));
    ExpectAnswer(prompt, 2);
    steps = decode_.engine().load().steps;
  }
}

TEST_P(EngineHiddenLandingTest, AHintThatIsNoReservationsChangesNothing) {
  const LandingPrompt prompt = Reserve();
  ASSERT_TRUE(prompt.Begin(1).ok());
  const ReservationGrant& grant = prompt.grant();
  Engine& engine = decode_.engine();
  engine.HiddenLanded(grant.reservation_id + 1, grant.epoch, 1, 4 * kChunkPages);
  engine.HiddenLanded(grant.reservation_id, grant.epoch + 1, 1, 4 * kChunkPages);
  engine.HiddenLanded(grant.reservation_id, grant.epoch, 2, 4 * kChunkPages);
  engine.HiddenLanded(grant.reservation_id, grant.epoch, 1, 0);
  EXPECT_TRUE(Steps(0));
  ExpectAnswer(prompt, 1);
  engine.HiddenLanded(grant.reservation_id, grant.epoch, 1, 4 * kChunkPages);
  decode_.ExpectFree();
}

TEST_P(EngineHiddenLandingTest, ACancelledReservationGivesEverythingBack) {
  for (const bool awaits_steps : {true, false}) {
    const LandingPrompt prompt = Reserve();
    ASSERT_TRUE(prompt.Begin(1).ok());
    prompt.LandHidden(1, 4 * kChunkPages);
    if (awaits_steps) {
      EXPECT_TRUE(Steps(4));
    }
    decode_.engine().Cancel("0", absl::CancelledError("enough"));
    EXPECT_TRUE(prompt.listener->AwaitDone());
    decode_.ExpectFree();
    EXPECT_FALSE(prompt.Begin(2).ok());
  }
}

// How many steps had ended, without the one that drew it, when the first token came.
class StepsAtFirstToken final : public RequestListener {
 public:
  explicit StepsAtFirstToken(Engine& engine) : engine_(engine) {}
  void OnTokens(int32_t /*sequence*/, std::span<const TokenOutput> /*tokens*/) override {
    if (!came_.HasBeenNotified()) {
      steps_ = engine_.load().steps;
      came_.Notify();
    }
  }
  void OnFinished(int32_t /*sequence*/, const SequenceFinish& /*finish*/) override {}
  void OnDone(const absl::Status& /*status*/, const RequestStats& /*stats*/) override {}
  int64_t Await() {
    EXPECT_TRUE(came_.WaitForNotificationWithTimeout(absl::Seconds(30)));
    return steps_;
  }

 private:
  Engine& engine_;
  absl::Notification came_;
  int64_t steps_ = -1;
};

TEST(EngineHiddenLandingOrderTest, ACommittedPromptGoesBeforeThoseThatStillLand) {
  const auto checkpoint = OpenModel(kModel);
  const auto log = std::make_shared<SinkLog>();
  const std::string policy = "hidden+dense";
  EXPECT_FALSE(PrefillToLog(*checkpoint, policy, kChunk, log).empty());
  const PlacedEngine decode(*checkpoint, Role::kDecode, Place::kHost, kChunk);
  Engine& engine = decode.engine();
  ReserveRequest request = ReserveFor(MakeRequest(policy, 0));
  const LandingPrompt landing(engine, request, *log);
  request.request_id = "committed";
  const auto steps = std::make_shared<StepsAtFirstToken>(engine);
  const LandingPrompt committed(engine, request, *log, steps);
  ASSERT_TRUE(landing.Begin(1).ok());
  ASSERT_TRUE(committed.Begin(1).ok());
  landing.LandAll();
  committed.LandAll();
  // Both are told while the engine thread is here, so that no step begins in between.
  absl::Notification answered;
  engine.RenewLease(
      landing.grant().reservation_id, landing.grant().epoch, [&](const absl::Status& renewed) {
        EXPECT_TRUE(renewed.ok()) << renewed;
        const ReservationGrant& first = landing.grant();
        engine.HiddenLanded(first.reservation_id, first.epoch, 1, 4 * kChunkPages);
        const ReservationGrant& second = committed.grant();
        engine.Commit(second.reservation_id,
                      second.epoch,
                      1,
                      *log->committed(),
                      [&](const absl::Status& status) {
                        EXPECT_TRUE(status.ok()) << status;
                        answered.Notify();
                      });
      });
  answered.WaitForNotification();
  EXPECT_EQ(steps->Await(), 5);  // its own chunks
  for (const char* id : {"0", "committed"}) {
    engine.Cancel(id, absl::CancelledError("enough"));
  }
  decode.ExpectFree();
}

INSTANTIATE_TEST_SUITE_P(
    Policies,
    EngineHiddenLandingTest,
    testing::Combine(testing::Values("hidden+dense",
                                     "hidden8+diffkv:ah=2,al=0.5,w=16",
                                     "hidden+shadowkv:rank=32,budget=48,outliers=2,local=7"),
                     testing::Values(Place::kHost, Place::kDevice)),
    [](const auto& instance) {
      std::string name = std::get<0>(instance.param) +
                         (std::get<1>(instance.param) == Place::kHost ? "_host" : "_device");
      for (char& c : name) {
        c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      }
      return name;
    });

}  // namespace
}  // namespace baton::engine
