// Pages of a prompt that lands beside a device's pools are moved while the rest is on its way: the
// answer of a prompt that lands at once, whatever came before.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

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
constexpr int32_t kChunk = 64;

class EnginePagesLandingTest : public testing::TestWithParam<std::string> {
 protected:
  LandingPrompt Reserve() const {
    return LandingPrompt(decode_.engine(), ReserveFor(MakeRequest(GetParam(), 0)), *log_);
  }
  bool Moved(int64_t bytes) const {
    return Eventually([&] { return decode_.copies.moved_bytes() == bytes; });
  }
  void ExpectAnswer(const LandingPrompt& prompt, uint32_t attempt) const {
    ExpectCommitted(decode_, prompt, attempt, *log_->committed(), first_, want_);
  }

  const std::unique_ptr<checkpoint::Checkpoint> checkpoint_ = OpenModel(kModel);
  const HostAnswer want_ = AnswersOfTheHost(*checkpoint_, GetParam(), 1).front();
  const std::shared_ptr<SinkLog> log_ = std::make_shared<SinkLog>();
  const std::vector<int32_t> first_ = PrefillToLog(*checkpoint_, GetParam(), kChunk, log_);
  const PlacedEngine decode_{*checkpoint_, Role::kDecode, Place::kDevice, kChunk};
};

// What lies where they landed, once they have been moved, is not moved again.
TEST_P(EnginePagesLandingTest, PagesAreMovedOnceWhileTheRestIsOnItsWay) {
  const LandingPrompt prompt = Reserve();
  const int32_t half = prompt.layers() / 2;
  ASSERT_TRUE(prompt.Begin(1).ok());
  prompt.LandLayers(1, 0, half, Told::kAtOnce);
  EXPECT_TRUE(Moved(prompt.bytes(0, half)));
  if (!GetParam().starts_with("shadowkv")) {  // whose ids are looked at where they landed
    prompt.LandLayers(1, 0, half, Told::kLater, /*damaged=*/true);
  }
  prompt.LandLayers(1, half, prompt.layers(), Told::kLater);
  ExpectAnswer(prompt, 1);
  EXPECT_TRUE(Moved(prompt.bytes(0, prompt.layers())));
}

TEST_P(EnginePagesLandingTest, ANewAttemptIsMovedAnew) {
  for (const bool moved : {true, false}) {
    const int64_t before = decode_.copies.moved_bytes();
    const LandingPrompt prompt = Reserve();
    ASSERT_TRUE(prompt.Begin(1).ok());
    prompt.LandLayers(1, 0, prompt.layers(), Told::kAtOnce, /*damaged=*/true);
    if (moved) {
      EXPECT_TRUE(Moved(before + prompt.bytes(0, prompt.layers())));
    }
    ASSERT_TRUE(prompt.Begin(2).ok());
    prompt.LandLayers(2, 0, prompt.layers(), Told::kAtOnce);
    ExpectAnswer(prompt, 2);
    EXPECT_TRUE(Moved(before + 2 * prompt.bytes(0, prompt.layers())));
  }
}

TEST_P(EnginePagesLandingTest, PagesThatComeOutOfOrderAreMovedAtTheCommit) {
  const LandingPrompt prompt = Reserve();
  ASSERT_TRUE(prompt.Begin(1).ok());
  prompt.LandAll();
  prompt.TellPages(1, {.layer_begin = 0, .layer_end = 1, .page_begin = 1, .page_end = 2});
  prompt.TellPages(1, {.layer_begin = 1, .layer_end = 2, .page_begin = 0, .page_end = 1});
  EXPECT_TRUE(Moved(prompt.bytes(1, 2) / prompt.pages(1)));
  prompt.TellPages(1, {.layer_begin = 0, .layer_end = 2, .page_begin = 0, .page_end = 1});
  ExpectAnswer(prompt, 1);
  EXPECT_TRUE(Moved(prompt.bytes(0, prompt.layers())));
}

TEST_P(EnginePagesLandingTest, AHintThatIsNoReservationsChangesNothing) {
  const LandingPrompt prompt = Reserve();
  ASSERT_TRUE(prompt.Begin(1).ok());
  const ReservationGrant& grant = prompt.grant();
  Engine& engine = decode_.engine();
  const LandedPages first = {.layer_begin = 0, .layer_end = 1, .page_begin = 0, .page_end = 1};
  engine.PagesLanded(grant.reservation_id + 1, grant.epoch, 1, first);
  engine.PagesLanded(grant.reservation_id, grant.epoch + 1, 1, first);
  engine.PagesLanded(grant.reservation_id, grant.epoch, 2, first);
  prompt.TellPages(1, {.layer_begin = 0, .layer_end = 99, .page_begin = 0, .page_end = 1});
  prompt.LandAll();
  ExpectAnswer(prompt, 1);
  EXPECT_TRUE(Moved(prompt.bytes(0, prompt.layers())));
  engine.PagesLanded(grant.reservation_id, grant.epoch, 1, first);
  decode_.ExpectFree();
}

TEST_P(EnginePagesLandingTest, AReservationThatIsCancelledWhilePagesMoveGivesEverythingBack) {
  const LandingPrompt prompt = Reserve();
  ASSERT_TRUE(prompt.Begin(1).ok());
  decode_.copies.Hold();
  prompt.LandLayers(1, 0, 1, Told::kAtOnce);
  decode_.engine().Cancel("0", absl::CancelledError("enough"));
  EXPECT_TRUE(prompt.listener->AwaitDone());
  EXPECT_TRUE(decode_.StagesNow());  // it is read
  decode_.copies.Release();
  decode_.ExpectFree();
}

TEST_P(EnginePagesLandingTest, AMoveThatFailsEndsTheRequest) {
  const LandingPrompt prompt = Reserve();
  ASSERT_TRUE(prompt.Begin(1).ok());
  decode_.copies.Fail();
  prompt.LandLayers(1, 0, 1, Told::kAtOnce);
  EXPECT_TRUE(prompt.listener->AwaitDone());
  EXPECT_TRUE(absl::IsInternal(prompt.listener->status())) << prompt.listener->status();
  decode_.ExpectFree();
}

INSTANTIATE_TEST_SUITE_P(Policies,
                         EnginePagesLandingTest,
                         testing::Values("dense",
                                         "fp8",
                                         "diffkv:ah=2,al=0.5,w=16",
                                         "shadowkv:rank=32,budget=48,outliers=2,local=7"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           for (char& c : name) {
                             c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace baton::engine
