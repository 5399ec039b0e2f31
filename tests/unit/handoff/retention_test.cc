// KV that was shipped once is shipped again from what prefill has retained.
#include "common/handoff/retain/retention.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "common/handoff/retain/retained_kv.h"
#include "common/handoff/retain/retention_store.h"
#include "common/metrics/registry.h"
#include "tests/unit/handoff/handoff_fixture.h"

namespace baton::handoff {
namespace {

class RetentionTest : public HandoffFixture {
 protected:
  RetentionTest() : HandoffFixture("loopback") {}

  std::shared_ptr<RetainedKv> OpenEntry() {
    return retention_.store().Open("request-1", "prompt", 0, absl::InfiniteFuture());
  }
  // Ships the fixture's prompt as attempt 1 and retains it; the engine's memory is overwritten
  // when both have read it.
  absl::Status ShipFirst(const worker::v1::Reserved& reserved) {
    const auto sink = retention_.Retain(OpenEntry(), Open(MakeTransfer(reserved)));
    GiveAll(*sink);
    const absl::Status status = Wait(Commit(*sink));
    expected_ = std::exchange(source_, std::vector<std::byte>(source_.size()));
    return status;
  }
  std::shared_ptr<const RetainedKv> Find() {
    std::shared_ptr<const RetainedKv> kv;
    absl::Notification answered;
    retention_.store().Find(
        "request-1", "prompt", absl::Now(), [&](std::shared_ptr<const RetainedKv> found) {
          kv = std::move(found);
          answered.Notify();
        });
    answered.WaitForNotification();
    return kv;
  }
  absl::Status ShipAgain(const worker::v1::Reserved& reserved, uint32_t attempt) {
    auto outcome = std::make_shared<Outcome>();
    ShipRetained(Find(),
                 Open(MakeTransfer(reserved, attempt)),
                 [outcome](absl::Status status, int64_t wire_bytes) {
                   outcome->status = std::move(status);
                   outcome->wire_bytes = wire_bytes;
                   outcome->ended.Notify();
                 });
    return Wait(outcome);
  }

  std::vector<std::byte> expected_;
  metrics::Registry registry_{metrics::RegistryOptions{.model_name = "tiny", .role = "prefill"}};
  Retention retention_{RetentionOptions{.budget_bytes = 1 << 20, .lease = absl::Minutes(1)},
                       registry_};
};

TEST_F(RetentionTest, ADamagedSegmentIsSentAgainFromWhatWasRetained) {
  const worker::v1::Reserved reserved = Reserve();
  faulty_.CorruptPosts(1);
  EXPECT_EQ(ShipFirst(reserved).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(ShipAgain(reserved, 2).ok());
  EXPECT_EQ(target_, expected_);
}

TEST_F(RetentionTest, AConnectionLostOnTheWayIsMadeAgainWithoutTheEnginesPages) {
  const worker::v1::Reserved reserved = Reserve();
  faulty_.FailConnection(true);
  EXPECT_EQ(ShipFirst(reserved).code(), absl::StatusCode::kUnavailable);
  faulty_.FailConnection(false);
  EXPECT_TRUE(ShipAgain(reserved, 2).ok());
  EXPECT_EQ(target_, expected_);
}

TEST_F(RetentionTest, ACommittedTransferLeavesTheSameBytesForAnotherDecodeWorker) {
  ASSERT_TRUE(ShipFirst(Reserve()).ok());
  EXPECT_EQ(target_, expected_);
  landing_.reset();
  StartLanding();  // another worker, whose memory is empty
  target_.assign(target_.size(), std::byte{0});
  EXPECT_TRUE(ShipAgain(Reserve(), 1).ok());
  EXPECT_EQ(target_, expected_);
  EXPECT_EQ(retention_.store().bytes(), static_cast<int64_t>(expected_.size() + 6));
}

TEST_F(RetentionTest, AnAbortedPromptIsNotRetained) {
  const auto sink = retention_.Retain(OpenEntry(), Open(MakeTransfer(Reserve())));
  Give(*sink, 0, 1, 0, 4);
  absl::Notification released;
  sink->Abort(absl::CancelledError("the client left"), [&] { released.Notify(); });
  ASSERT_TRUE(released.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(retention_.store().entries(), 0);
  EXPECT_EQ(Find(), nullptr);
}

TEST_F(RetentionTest, APromptWithoutRoomIsShippedAndNotRetained) {
  Retention small(RetentionOptions{.budget_bytes = 4096}, registry_);
  const auto sink =
      small.Retain(small.store().Open("request-1", "prompt", 0, absl::InfiniteFuture()),
                   Open(MakeTransfer(Reserve())));
  GiveAll(*sink);
  EXPECT_TRUE(Wait(Commit(*sink)).ok());
  EXPECT_EQ(target_, source_);
  EXPECT_EQ(small.store().entries(), 0);
}

TEST_F(RetentionTest, AnEntryOfARequestThatEndedIsNotFilled) {
  auto entry = OpenEntry();
  const auto sink = retention_.Retain(entry, Open(MakeTransfer(Reserve())));
  retention_.store().Release("request-1");
  GiveAll(*sink);
  EXPECT_TRUE(Wait(Commit(*sink)).ok());
  EXPECT_TRUE(entry->groups.empty());
  EXPECT_EQ(retention_.store().entries(), 0);
}

}  // namespace
}  // namespace baton::handoff
