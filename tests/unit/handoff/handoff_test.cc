// Whole hand-offs, over loopback and over gRPC on 127.0.0.1.

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"

#include "common/engine/request.h"
#include "common/handoff/send/sender.h"
#include "common/kv/manifest/segment_header.h"
#include "common/transport/transport.h"
#include "tests/unit/engine/eventually.h"
#include "tests/unit/handoff/handoff_fixture.h"

namespace baton::handoff {
namespace {

class HandoffTest : public HandoffFixture {};

TEST_P(HandoffTest, PagesArriveByteIdenticalAndAreCommittedOnce) {
  OutgoingTransfer transfer = MakeTransfer(Reserve());
  TransferReport report;
  transfer.report = [&report](const TransferReport& given) { report = given; };
  const auto sink = Open(std::move(transfer));
  GiveAll(*sink);
  const auto outcome = Commit(*sink);
  ASSERT_TRUE(Wait(outcome).ok()) << outcome->status;
  EXPECT_EQ(source_, target_);
  const auto committed = engine_.committed();
  ASSERT_EQ(committed.size(), 1u);
  EXPECT_EQ(committed[0].reservation_id, kReservation);
  const engine::CommitInfo& info = committed[0].info;
  ASSERT_EQ(info.first_tokens.size(), 2u);
  EXPECT_EQ(info.first_tokens[0].token_id, 11);
  EXPECT_EQ(info.first_tokens[0].top_logprobs.size(), 1u);
  EXPECT_EQ(info.first_tokens[1].logprob, -1.5f);
  EXPECT_FALSE(info.finished[0].has_value());
  EXPECT_EQ(info.finished[1]->stop_token_id, 12);
  EXPECT_EQ(info.prompt_token_bitmap, (std::vector<uint8_t>{1, 2, 3}));
  EXPECT_EQ(info.kv_wire_bytes, outcome->wire_bytes);
  EXPECT_EQ(report.payload_bytes, static_cast<int64_t>(source_.size()));
  EXPECT_GT(outcome->wire_bytes, report.payload_bytes + 96 * report.segments);
  EXPECT_EQ(report.carrier, GetParam());
  EXPECT_EQ(landing_->open_reservations(), 0);
}

// A piece of the sender's memory may be pages of several layers, which lie apart in the window when
// not all pages of a layer come at once.
TEST_P(HandoffTest, LayersThatLieInOnePieceArriveByteIdentical) {
  for (const int64_t first_pages : {pages_per_layer(), int64_t{4}}) {
    Fill();
    const auto sink = Open(MakeTransfer(Reserve()));
    Give(*sink, 0, kLayers, 0, first_pages);
    if (first_pages < pages_per_layer()) {
      Give(*sink, 0, kLayers, first_pages, pages_per_layer());
    }
    const absl::Status status = Wait(Commit(*sink));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(source_, target_) << first_pages << " pages first";
  }
}

// Others wait until a segment is worth while.
TEST_P(HandoffTest, EncodedLayersShipAsSoonAsNothingIsOnItsWay) {
  const auto sink = Open(MakeTransfer(Reserve()));
  Give(*sink, 0, 1, 0, pages_per_layer(), /*encoded=*/true);
  EXPECT_TRUE(engine::Eventually([&] { return !engine_.pages_landed().empty(); }));
  Give(*sink, 1, 2, 0, pages_per_layer(), /*encoded=*/true);
  const absl::Status status = Wait(Commit(*sink));
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(source_, target_);
  const auto pages = static_cast<int32_t>(pages_per_layer());
  EXPECT_THAT(
      engine_.pages_landed(),
      testing::ElementsAre(
          engine::LandedPages{.layer_begin = 0, .layer_end = 1, .page_begin = 0, .page_end = pages},
          engine::LandedPages{
              .layer_begin = 1, .layer_end = 3, .page_begin = 0, .page_end = pages}));
}

TEST_P(HandoffTest, NoMoreIsOnItsWayThanATransferHasCreditFor) {
  // Every call of GiveAll is a segment of 4 or 6 pages; 10 pages may be on their way.
  StartSender({.segment_bytes = static_cast<int64_t>(page_.page_bytes()) * 10 / 4});
  faulty_.Hold();
  const auto sink = Open(MakeTransfer(Reserve()));
  GiveAll(*sink);
  const auto outcome = Commit(*sink);
  const absl::Time deadline = absl::Now() + kLong;
  while (faulty_.posts() < 3 && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(faulty_.posts(), 3);
  faulty_.Resume();
  ASSERT_TRUE(Wait(outcome).ok()) << outcome->status;
  EXPECT_EQ(faulty_.posts(), 6);
  EXPECT_EQ(source_, target_);
}

TEST_P(HandoffTest, LateWriteAfterCommitIsRefused) {
  const worker::v1::Reserved reserved = Reserve();
  const auto sink = Open(MakeTransfer(reserved));
  GiveAll(*sink);
  ASSERT_TRUE(Wait(Commit(*sink)).ok());
  const auto late = Open(MakeTransfer(reserved, 2));
  std::fill(source_.begin(), source_.end(), std::byte{0});
  const std::vector<std::byte> before = target_;
  GiveAll(*late);
  EXPECT_EQ(Wait(Commit(*late)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(target_, before);
}

TEST_P(HandoffTest, DamagedPayloadIsDataLossAndNothingIsPublished) {
  faulty_.CorruptPosts(1);
  const auto sink = Open(MakeTransfer(Reserve()));
  GiveAll(*sink);
  const absl::Status status = Wait(Commit(*sink));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_TRUE(engine_.committed().empty());
  EXPECT_EQ(landing_->open_reservations(), 1);  // the next attempt may try
}

TEST_P(HandoffTest, NextAttemptSucceedsAfterAFailedOne) {
  const worker::v1::Reserved reserved = Reserve();
  faulty_.CorruptPosts(1);
  const auto first = Open(MakeTransfer(reserved, 1));
  GiveAll(*first);
  EXPECT_FALSE(Wait(Commit(*first)).ok());
  const auto second = Open(MakeTransfer(reserved, 2));
  GiveAll(*second);
  const absl::Status status = Wait(Commit(*second));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(source_, target_);
  ASSERT_EQ(engine_.committed().size(), 1u);
  EXPECT_EQ(engine_.committed()[0].attempt, 2u);
}

TEST_P(HandoffTest, LowerAttemptIsRefused) {
  const worker::v1::Reserved reserved = Reserve();
  const auto second = Open(MakeTransfer(reserved, 2));
  const auto first = Open(MakeTransfer(reserved, 1));
  GiveAll(*first);
  EXPECT_EQ(Wait(Commit(*first)).code(), absl::StatusCode::kFailedPrecondition);
  GiveAll(*second);
  EXPECT_TRUE(Wait(Commit(*second)).ok());
  EXPECT_EQ(source_, target_);
}

TEST_P(HandoffTest, NewerAttemptSupersedesOneInFlight) {
  const worker::v1::Reserved reserved = Reserve();
  faulty_.Hold();
  const auto first = Open(MakeTransfer(reserved, 1));
  GiveAll(*first);
  const auto first_outcome = Commit(*first);
  const auto second = Open(MakeTransfer(reserved, 2));
  EXPECT_EQ(Wait(first_outcome).code(), absl::StatusCode::kFailedPrecondition);
  faulty_.Resume();
  GiveAll(*second);
  EXPECT_TRUE(Wait(Commit(*second)).ok());
  EXPECT_EQ(source_, target_);
}

TEST_P(HandoffTest, StaleEpochIsRefused) {
  worker::v1::Reserved reserved = Reserve();
  reserved.set_epoch(kEpoch + 1);
  const auto sink = Open(MakeTransfer(reserved));
  GiveAll(*sink);
  const absl::Status status = Wait(Commit(*sink));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("STALE_EPOCH"));
  EXPECT_TRUE(TargetUntouched());
}

TEST_P(HandoffTest, AbortReleasesThePagesAndIgnoresWhatComesLater) {
  faulty_.DropPosts(1000);
  auto sink = Open(MakeTransfer(Reserve()));
  GiveAll(*sink);
  absl::Notification released;
  sink->Abort(absl::CancelledError("the client left"), [&released] { released.Notify(); });
  EXPECT_TRUE(released.WaitForNotificationWithTimeout(kLong));
  EXPECT_TRUE(engine_.committed().empty());
}

// Catalogue T14
TEST_P(HandoffTest, LateWriteToReusedPagesIsRefusedAndTheirBytesStay) {
  faulty_.Hold();  // the posts are on their way, as on a slow network
  auto sink = Open(MakeTransfer(Reserve()));
  GiveAll(*sink);
  const auto outcome = Commit(*sink);
  while (faulty_.posts() == 0) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  landing_->OnReservationReleased(kReservation);
  std::fill(target_.begin(), target_.end(), std::byte{0xee});  // another request's pages now
  faulty_.Resume();
  EXPECT_FALSE(Wait(outcome).ok());
  EXPECT_TRUE(TargetUntouched());
  EXPECT_EQ(landing_->open_reservations(), 0);
}

TEST_P(HandoffTest, DeadlineEndsATransferWhoseBytesAreLost) {
  faulty_.DropPosts(1000);
  OutgoingTransfer transfer = MakeTransfer(Reserve());
  transfer.deadline = absl::Now() + absl::Milliseconds(200);
  const auto sink = Open(std::move(transfer));
  GiveAll(*sink);
  EXPECT_EQ(Wait(Commit(*sink)).code(), absl::StatusCode::kDeadlineExceeded);
}

// The request has time left: another decode worker may take what this one does not.
TEST_P(HandoffTest, DecodeThatDoesNotTakeTheHandOffInTimeIsUnavailable) {
  StartSender({.segment_bytes = segment_bytes_, .commit_timeout = absl::Milliseconds(200)});
  faulty_.DropPosts(1000);
  OutgoingTransfer transfer = MakeTransfer(Reserve());
  transfer.deadline = absl::Now() + 10 * kLong;
  const auto sink = Open(std::move(transfer));
  GiveAll(*sink);
  const absl::Status status = Wait(Commit(*sink));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

// The time for the commit is one of silence. The faulty transport keeps posts back, so that each
// round of them ends later than a whole commit_timeout after Commit but the first.
TEST_P(HandoffTest, DecodeThatTakesSegmentsSlowlyHasTimeForTheNextOne) {
  if (std::string_view(GetParam()) != "loopback") {
    GTEST_SKIP() << "seconds of waiting, which are the sender's on every transport";
  }
  StartSender({.segment_bytes = static_cast<int64_t>(page_.page_bytes()),
               .commit_timeout = absl::Seconds(5)});
  faulty_.Hold();
  OutgoingTransfer transfer = MakeTransfer(Reserve());
  transfer.deadline = absl::Now() + 10 * kLong;
  const auto sink = Open(std::move(transfer));
  GiveAll(*sink);
  const auto outcome = Commit(*sink);
  int rounds = 0;
  while (!outcome->ended.WaitForNotificationWithTimeout(absl::Milliseconds(2600))) {
    faulty_.Resume();
    faulty_.Hold();
    ++rounds;
  }
  EXPECT_TRUE(outcome->status.ok()) << outcome->status;
  EXPECT_GE(rounds, 2) << "it took no longer than the limit";
}

// Neither the request's deadline nor this worker's room: the router would end the request, or ask
// the same pair for ever.
TEST_P(HandoffTest, DecodeThatIsFullOrLateInTheHandshakeIsUnavailable) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kResourceExhausted}) {
    handshake_.status = absl::Status(code, "QUEUE_FULL: not now");
    const auto sink = Open(MakeTransfer(Reserve()));
    const absl::Status status = Wait(Commit(*sink));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("decode: "));
    landing_->OnReservationReleased(kReservation);
  }
}

TEST_P(HandoffTest, AFailureBeforeTheCommitIsToldAtOnceAndOnce) {
  faulty_.FailConnection(true);
  OutgoingTransfer transfer = MakeTransfer(Reserve());
  std::atomic<int> told = 0;
  absl::Notification failed;
  absl::Status reason;
  transfer.failed_early = [&](const absl::Status& status) {
    reason = status;
    if (++told == 1) {
      failed.Notify();
    }
  };
  const auto sink = Open(std::move(transfer));
  GiveAll(*sink);
  ASSERT_TRUE(failed.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable) << reason;
  EXPECT_FALSE(Wait(Commit(*sink)).ok());
  EXPECT_EQ(told, 1);
}

TEST_P(HandoffTest, AFailureAfterTheCommitIsItsAnswerAlone) {
  StartSender({.segment_bytes = segment_bytes_, .commit_timeout = absl::Milliseconds(100)});
  faulty_.DropPosts(1000);
  OutgoingTransfer transfer = MakeTransfer(Reserve());
  std::atomic<int> told = 0;
  transfer.failed_early = [&](const absl::Status&) { ++told; };
  const auto sink = Open(std::move(transfer));
  EXPECT_FALSE(Wait(Commit(*sink)).ok());
  EXPECT_EQ(told, 0);
}

TEST_P(HandoffTest, DeadPeerIsUnavailableAndANewPeerIsConnectedTo) {
  faulty_.Hold();
  auto sink = Open(MakeTransfer(Reserve()));
  GiveAll(*sink);
  const auto outcome = Commit(*sink);
  while (faulty_.posts() == 0) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  landing_.reset();
  pair_->KillReceiver();
  EXPECT_EQ(Wait(outcome).code(), absl::StatusCode::kUnavailable) << outcome->status;
  faulty_.Resume();
  pair_->StartReceiver();
  StartLanding();
  // The first attempt may still meet the broken connection; it is dropped and made again.
  absl::Status status;
  for (uint32_t attempt = 1; attempt <= 3; ++attempt) {
    const auto again = Open(MakeTransfer(Reserve(), attempt));
    GiveAll(*again);
    status = Wait(Commit(*again));
    if (status.ok()) {
      break;
    }
    landing_->OnReservationReleased(kReservation);
  }
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(source_, target_);
}

TEST_P(HandoffTest, FailingConnectionIsReportedAtCommit) {
  faulty_.FailConnection(true);
  const auto sink = Open(MakeTransfer(Reserve()));
  GiveAll(*sink);
  EXPECT_EQ(Wait(Commit(*sink)).code(), absl::StatusCode::kUnavailable);
}

TEST_P(HandoffTest, LayoutMismatchIsRefusedBeforeAnythingIsSent) {
  OutgoingTransfer transfer = MakeTransfer(Reserve());
  transfer.reserved.mutable_layout()->set_head_dim(16);
  const auto sink = Open(std::move(transfer));
  GiveAll(*sink);
  const absl::Status status = Wait(Commit(*sink));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("head_dim"));
  EXPECT_TRUE(TargetUntouched());
}

// Catalogue T16
TEST_P(HandoffTest, HandshakeNamesTheFirstFieldThatDiffers) {
  worker::v1::HandshakeRequest request;
  *request.mutable_layout() = layout_;
  request.set_segment_header_version(kv::SegmentHeader::kVersion);
  request.add_transports(GetParam());
  const auto agreed = landing_->Handshake(request);
  ASSERT_TRUE(agreed.ok());
  EXPECT_EQ(agreed->endpoints(0).connection_data(), pair_->receiver().connection_data());
  request.mutable_layout()->set_page_tokens(16);
  request.mutable_layout()->set_format("other");
  const absl::Status status = landing_->Handshake(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      testing::AllOf(testing::HasSubstr("LAYOUT_MISMATCH"), testing::HasSubstr("page_tokens")));
}

TEST_P(HandoffTest, PeersAreHandshakenOnceAndAheadWhenWarmed) {
  sender_->Warm("decode:1");
  const absl::Time deadline = absl::Now() + kLong;
  while (handshake_.handshakes == 0 && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  for (int i = 0; i < 3; ++i) {
    const auto sink = Open(MakeTransfer(Reserve()));
    GiveAll(*sink);
    ASSERT_TRUE(Wait(Commit(*sink)).ok());
  }
  EXPECT_EQ(handshake_.handshakes, 1);
}

TEST_P(HandoffTest, FailedHandshakeIsTriedAgainByTheNextTransfer) {
  const worker::v1::Reserved reserved = Reserve();
  std::unique_ptr<Landing> down;
  {
    auto control = std::make_unique<InProcessControl>(landing_.get());
    down = std::move(landing_);  // handshakes fail
    const auto sink = sender_->Open(MakeTransfer(reserved), std::move(control));
    GiveAll(*sink);
    EXPECT_EQ(Wait(Commit(*sink)).code(), absl::StatusCode::kUnavailable);
  }
  landing_ = std::move(down);
  const auto sink = Open(MakeTransfer(reserved, 2));
  GiveAll(*sink);
  EXPECT_TRUE(Wait(Commit(*sink)).ok());
}

// The sender keeps nothing of a transfer that it refuses: the sink is all there is of it.
TEST_P(HandoffTest, SinkMayBeDroppedByTheCallbackThatEndsIt) {
  StartSender({.max_open_transfers = 0});
  const worker::v1::Reserved reserved = Reserve();
  absl::Status committed;
  std::unique_ptr<engine::KvSink> sink = Open(MakeTransfer(reserved));
  sink->Commit(MakeCommit(), [&](absl::Status status, int64_t /*wire_bytes*/) {
    committed = std::move(status);
    sink.reset();
  });
  EXPECT_EQ(committed.code(), absl::StatusCode::kResourceExhausted) << committed;
  EXPECT_EQ(sink, nullptr);
  sink = Open(MakeTransfer(reserved));
  sink->Abort(absl::CancelledError("enough"), [&] { sink.reset(); });
  EXPECT_EQ(sink, nullptr);
}

TEST_P(HandoffTest, ShutdownOfTheSenderEndsOpenTransfers) {
  faulty_.DropPosts(1000);
  const auto sink = Open(MakeTransfer(Reserve()));
  GiveAll(*sink);
  const auto outcome = Commit(*sink);
  sender_.reset();
  EXPECT_EQ(Wait(outcome).code(), absl::StatusCode::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(BackEnds,
                         HandoffTest,
                         testing::Values("loopback", "grpc", "ipc"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace baton::handoff
