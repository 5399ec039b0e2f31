// What only the UCX back end does: granted slots, puts and messages into them, quarantine, who may
// connect.
#include "common/transport/ucx/ucx_transport.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/transport/ucx/carrier.h"
#include "common/transport/ucx/message.h"
#include "kernels/core/landing_memory.h"
#include "tests/unit/transport/raw_ucx_peer.h"
#include "tests/unit/transport/raw_ucx_receiver.h"
#include "tests/unit/transport/transport_pair.h"

namespace baton::transport {
namespace {

using testing::HasSubstr;
using ucx::Grant;
using ucx::RawUcxPeer;
using ucx::Release;
using ucx::Request;
using ucx::Verdict;
using ucx::Written;

constexpr int64_t kSlot = UcxPair::kSlotBytes;

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!condition()) {
    if (absl::Now() >= deadline) {
      return false;
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

std::unique_ptr<UcxTransport> Receiver(UcxTransportOptions options = {}) {
  options.listen = "127.0.0.1:0";
  options.slot_bytes = kSlot;
  return *UcxTransport::Make(options);
}

class UcxTransportTest : public testing::Test {
 protected:
  explicit UcxTransportTest(bool puts = false) : puts_(puts) {}
  void Start(UcxTransportOptions options = {}) {
    options.put_without_rdma = puts_;
    receiver_ = Receiver(options);
    memory_.assign(kWindowBytes, std::byte{0xee});
    window_ = *receiver_->Register({std::span(memory_)}, kernels::HostLanding());
  }
  absl::Status Expect(uint64_t transfer_id, int64_t offset, int64_t size_bytes) {
    return receiver_->Expect({.window = window_.get(),
                              .runs = {{offset, size_bytes}},
                              .transfer_id = transfer_id,
                              .tag = transfer_id});
  }
  Request RequestOf(uint64_t transfer_id, uint64_t total_bytes) const {
    return {.post = transfer_id + 100,
            .transfer_id = transfer_id,
            .total_bytes = total_bytes,
            .window = window_->descriptor()};
  }
  static Written WrittenOf(const Grant& grant, uint64_t offset, uint32_t size, bool last) {
    return {.post = grant.post,
            .generation = grant.generation,
            .slot = grant.slot,
            .last = last,
            .pieces = {{.offset = offset, .size = size}}};
  }
  absl::Status Received() {
    const auto completions = receiver_->Poll(absl::Now() + absl::Seconds(20));
    EXPECT_EQ(completions.size(), 1U);
    return completions.empty() ? absl::UnknownError("nothing") : completions[0].status;
  }
  std::span<const std::byte> Bytes(size_t size) const { return std::span(bytes_).first(size); }
  bool Untouched() const {
    return std::all_of(
        memory_.begin(), memory_.end(), [](std::byte byte) { return byte == std::byte{0xee}; });
  }
  UcxStats Stats() const { return receiver_->stats(); }
  bool QuarantineBecomes(int64_t slots) {
    return Eventually([&] { return Stats().quarantined_slots == slots; });
  }

  static constexpr size_t kWindowBytes = size_t{1} << 20;
  const std::vector<std::byte> bytes_ = std::vector<std::byte>(kSlot + 1, std::byte{7});
  const bool puts_;
  std::unique_ptr<UcxTransport> receiver_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Window> window_;
};

// Puts, which UCX emulates where there is no RDMA.
class UcxPutTest : public UcxTransportTest {
 protected:
  UcxPutTest() : UcxTransportTest(/*puts=*/true) {}
};

class UcxBothWaysTest : public UcxTransportTest, public testing::WithParamInterface<bool> {
 protected:
  UcxBothWaysTest() : UcxTransportTest(/*puts=*/GetParam()) {}
};

INSTANTIATE_TEST_SUITE_P(Ways, UcxBothWaysTest, testing::Bool(), [](const auto& instance) {
  return std::string(instance.param ? "puts" : "messages");
});

TEST_F(UcxTransportTest, CarrierNamesWhatUcxSelected) {
  Start();
  const auto sender = *UcxTransport::Make({});
  const auto connection = *sender->Connect(receiver_->connection_data());
  EXPECT_THAT(std::string(connection->carrier()), testing::MatchesRegex("ucx/[a-z0-9_]+"));
  EXPECT_NE(connection->carrier(), "ucx/unknown");
  EXPECT_THAT(Stats().carriers, testing::ElementsAre(std::string(connection->carrier())));
}

TEST_F(UcxTransportTest, PeersThatAreNotOnTheListAreRefused) {
  Start({.allowed_peers = "10.1.2.3"});
  const auto sender = *UcxTransport::Make({});
  const absl::Status refused = sender->Connect(receiver_->connection_data()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
}

TEST_F(UcxTransportTest, WithoutAListenerConnectIsUnavailable) {
  Start();
  const std::string address = receiver_->connection_data();
  window_.reset();
  receiver_.reset();
  const auto sender = *UcxTransport::Make({});
  const absl::Status status = sender->Connect(address).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(UcxTransportTest, EitherSideMayRequireRdma) {
  Start();
  const auto plain = *UcxTransport::Make({});
  const auto connection = *plain->Connect(receiver_->connection_data());
  if (ucx::IsRdma(connection->carrier())) {
    GTEST_SKIP() << "this machine has RDMA: " << connection->carrier();
  }
  const auto strict = *UcxTransport::Make({.require_rdma = true});
  const absl::Status refused = strict->Connect(receiver_->connection_data()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::string(connection->carrier())));
  const auto strict_receiver = Receiver({.require_rdma = true});
  const absl::Status refusal = plain->Connect(strict_receiver->connection_data()).status();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition) << refusal;
}

TEST_F(UcxPutTest, ArenaBoundsThePeersAndIsFreeAgainWhenOneLeaves) {
  Start({.arena_bytes = 8 * kSlot});
  const auto sender = *UcxTransport::Make({});
  auto first = *sender->Connect(receiver_->connection_data());
  EXPECT_EQ(sender->Connect(receiver_->connection_data()).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Eventually([&] { return Stats().arena_bytes == 8 * kSlot; }));
  first.reset();
  EXPECT_TRUE(Eventually([&] { return sender->Connect(receiver_->connection_data()).ok(); }));
}

TEST_F(UcxTransportTest, OptionsOutOfRangeAreRefused) {
  for (const UcxTransportOptions& options : {UcxTransportOptions{.allowed_peers = "nobody"},
                                             UcxTransportOptions{.bandwidth_floor = 1},
                                             UcxTransportOptions{.bandwidth_floor = -1e9},
                                             UcxTransportOptions{.arena_bytes = 100},
                                             UcxTransportOptions{.slot_bytes = 1},
                                             UcxTransportOptions{.slots_per_peer = 0}}) {
    EXPECT_EQ(UcxTransport::Make(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(UcxBothWaysTest, SlotsCarryATransferAndAreFreeAfterIt) {
  Start();
  RawUcxPeer peer(receiver_->connection_data());
  ASSERT_TRUE(Expect(1, 10, kSlot + 5).ok());
  peer.Say(RequestOf(1, kSlot + 5));
  const Grant first = peer.Await<Grant>().value();
  const Grant second = peer.Await<Grant>().value();
  EXPECT_NE(first.slot, second.slot);
  peer.Write(WrittenOf(first, 10, kSlot, false), Bytes(kSlot));
  peer.Write(WrittenOf(second, 10 + kSlot, 5, true), Bytes(5));
  EXPECT_EQ(peer.Await<Verdict>().value().code, 0);
  EXPECT_TRUE(Received().ok());
  EXPECT_EQ(std::memcmp(memory_.data() + 10, bytes_.data(), kSlot), 0);
  EXPECT_EQ(memory_[9], std::byte{0xee});
  EXPECT_EQ(memory_[10 + kSlot + 5], std::byte{0xee});
  EXPECT_TRUE(Eventually([&] { return Stats().granted_slots == 0; }));
}

// Catalogue T14
TEST_F(UcxPutTest, LatePutOfACancelledTransferStaysInItsQuarantinedSlot) {
  Start();
  RawUcxPeer peer(receiver_->connection_data());
  ASSERT_TRUE(Expect(1, 0, 2 * kSlot).ok());
  peer.Say(RequestOf(1, 2 * kSlot));
  const Grant grant = peer.Await<Grant>().value();
  ASSERT_TRUE(peer.Await<Grant>().has_value());
  window_->CancelTransfers();
  EXPECT_EQ(Received().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(QuarantineBecomes(2));
  ASSERT_TRUE(peer.Put(grant.slot, Bytes(kSlot)).ok());
  peer.Say(WrittenOf(grant, 0, kSlot, false));
  EXPECT_EQ(peer.Await<Verdict>().value().code,
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_TRUE(QuarantineBecomes(1));
  EXPECT_TRUE(Untouched());
  peer.Say(Release{.post = 101});
  EXPECT_TRUE(QuarantineBecomes(0));
  EXPECT_TRUE(Eventually([&] { return Stats().granted_slots == 0; }));
}

TEST_F(UcxPutTest, LatePutAfterTheWindowIsGoneReachesNoMemory) {
  Start();
  RawUcxPeer peer(receiver_->connection_data());
  ASSERT_TRUE(Expect(1, 0, kSlot).ok());
  peer.Say(RequestOf(1, kSlot));
  const Grant grant = peer.Await<Grant>().value();
  window_.reset();
  EXPECT_TRUE(QuarantineBecomes(1));
  ASSERT_TRUE(peer.Put(grant.slot, Bytes(kSlot)).ok());
  peer.Say(WrittenOf(grant, 0, kSlot, true));
  EXPECT_EQ(peer.Await<Verdict>().value().code,
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_TRUE(Untouched());
  EXPECT_TRUE(QuarantineBecomes(0));
}

TEST_F(UcxPutTest, QuarantinedSlotsAreNotGrantedAgain) {
  Start({.arena_bytes = 2 * kSlot, .slots_per_peer = 2});
  RawUcxPeer peer(receiver_->connection_data());
  ASSERT_TRUE(Expect(1, 0, 2 * kSlot).ok());
  peer.Say(RequestOf(1, 2 * kSlot));
  ASSERT_TRUE(peer.Await<Grant>().has_value() && peer.Await<Grant>().has_value());
  window_->CancelTransfers();
  ASSERT_TRUE(QuarantineBecomes(2));
  ASSERT_TRUE(peer.Await<Verdict>().has_value());
  ASSERT_TRUE(Expect(2, 0, kSlot).ok());
  peer.Say(RequestOf(2, kSlot));
  EXPECT_FALSE(peer.Await<Grant>(absl::Milliseconds(60)).has_value());
  peer.Say(Release{.post = 101});
  EXPECT_EQ(peer.Await<Grant>().value().post, 102U);
}

TEST_F(UcxPutTest, PeerThatKeepsQuarantinedSlotsLosesItsConnection) {
  Start({.quarantine_timeout = absl::Milliseconds(50)});
  RawUcxPeer peer(receiver_->connection_data());
  ASSERT_TRUE(Expect(1, 0, kSlot).ok());
  peer.Say(RequestOf(1, kSlot));
  ASSERT_TRUE(peer.Await<Grant>().has_value());
  window_->CancelTransfers();
  EXPECT_TRUE(peer.AwaitEnd());
  EXPECT_TRUE(QuarantineBecomes(0));
  EXPECT_TRUE(Eventually([&] { return Stats().arena_bytes == 0; }));
}

// Catalogue T14
TEST_F(UcxTransportTest, LateMessageOfACancelledTransferIsDroppedAndItsSlotsAreFreeAtOnce) {
  Start();
  RawUcxPeer peer(receiver_->connection_data());
  ASSERT_TRUE(Expect(1, 0, 2 * kSlot).ok());
  peer.Say(RequestOf(1, 2 * kSlot));
  const Grant grant = peer.Await<Grant>().value();
  ASSERT_TRUE(peer.Await<Grant>().has_value());
  window_->CancelTransfers();
  EXPECT_EQ(Received().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(peer.Await<Verdict>().value().code,
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(Stats().quarantined_slots, 0);
  EXPECT_TRUE(Eventually([&] { return Stats().granted_slots == 0; }));
  peer.Write(WrittenOf(grant, 0, kSlot, false), Bytes(kSlot));
  peer.Say(Release{.post = 101});
  ASSERT_TRUE(Expect(2, kSlot, kSlot).ok());
  peer.Say(RequestOf(2, kSlot));
  const Grant next = peer.Await<Grant>().value();
  EXPECT_EQ(next.post, 102U);
  EXPECT_TRUE(Untouched());
}

TEST_F(UcxTransportTest, PeersThatSendMessagesTakeNoMemory) {
  Start({.arena_bytes = 8 * kSlot});
  const RawUcxPeer first(receiver_->connection_data());
  const RawUcxPeer second(receiver_->connection_data());
  EXPECT_FALSE(first.puts());
  EXPECT_EQ(first.welcome().slots, 8);
  EXPECT_EQ(second.welcome().base, 0U);
  EXPECT_EQ(Stats().arena_bytes, 0);
}

TEST_F(UcxTransportTest, MessagesWithoutBytesAreRefused) {
  Start();
  RawUcxPeer peer(receiver_->connection_data());
  ASSERT_TRUE(Expect(1, 0, 100).ok());
  peer.Say(RequestOf(1, 100));
  peer.Say(WrittenOf(peer.Await<Grant>().value(), 0, 100, true));
  EXPECT_EQ(peer.Await<Verdict>().value().code,
            static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(Untouched());
}

TEST_F(UcxPutTest, BytesInMessagesAreRefused) {
  Start();
  RawUcxPeer peer(receiver_->connection_data());
  ASSERT_TRUE(Expect(1, 0, 100).ok());
  peer.Say(RequestOf(1, 100));
  Written written = WrittenOf(peer.Await<Grant>().value(), 0, 100, true);
  written.bytes.assign(100, 'x');
  peer.Say(written);
  EXPECT_EQ(peer.Await<Verdict>().value().code,
            static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(Untouched());
}

TEST_P(UcxBothWaysTest, ReleaseIsAnsweredByTheOneVerdictOfItsRequest) {
  Start();
  RawUcxPeer peer(receiver_->connection_data());
  ASSERT_TRUE(Expect(1, 0, kSlot).ok());
  peer.Say(RequestOf(1, kSlot));
  ASSERT_TRUE(peer.Await<Grant>().has_value());
  peer.Say(Release{.post = 101});
  EXPECT_EQ(peer.Await<Verdict>().value().code, static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(Received().code(), absl::StatusCode::kUnavailable);
  peer.Say(Release{.post = 101});
  EXPECT_FALSE(peer.Await<Verdict>(absl::Milliseconds(60)).has_value());
  EXPECT_TRUE(Eventually([&] { return Stats().granted_slots == 0; }));
}

TEST_P(UcxBothWaysTest, ConnectionsThatCarryTooLittleAreRefusedAndOthersUsed) {
  Start();
  const auto strict = *UcxTransport::Make({.bandwidth_floor = 1e13});
  const absl::Status refused = strict->Connect(receiver_->connection_data()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--kv_bandwidth_floor is 8e+04 Gbit/s"));
  const auto lenient = *UcxTransport::Make({.bandwidth_floor = 1e6});
  EXPECT_TRUE(lenient->Connect(receiver_->connection_data()).ok());
  EXPECT_TRUE(Eventually([&] { return Stats().granted_slots == 0; }));
  EXPECT_TRUE(Untouched());
}

TEST_P(UcxBothWaysTest, ProbesOfOtherSizesThanRequestedAreRefused) {
  Start();
  RawUcxPeer peer(receiver_->connection_data());
  for (const uint32_t size : {99U, 101U}) {
    peer.Say(Request{.post = size, .total_bytes = 100});
    peer.Write(WrittenOf(peer.Await<Grant>().value(), 0, size, true), Bytes(size));
    EXPECT_EQ(peer.Await<Verdict>().value().code,
              static_cast<int>(absl::StatusCode::kInvalidArgument));
  }
  peer.Say(Request{.post = 1, .total_bytes = 100});
  peer.Write(WrittenOf(peer.Await<Grant>().value(), 0, 100, true), Bytes(100));
  EXPECT_EQ(peer.Await<Verdict>().value().code, 0);
}

TEST_P(UcxBothWaysTest, SenderThatDiesInMidTransferFreesItsSlots) {
  Start();
  {
    RawUcxPeer peer(receiver_->connection_data());
    ASSERT_TRUE(Expect(1, 0, 2 * kSlot).ok());
    peer.Say(RequestOf(1, 2 * kSlot));
    const Grant grant = peer.Await<Grant>().value();
    peer.Write(WrittenOf(grant, 0, kSlot, false), Bytes(kSlot));
    EXPECT_TRUE(Eventually([&] { return memory_[kSlot - 1] == std::byte{7}; }));
  }
  EXPECT_EQ(Received().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Eventually([&] { return Stats().arena_bytes == 0 && Stats().granted_slots == 0; }));
  EXPECT_EQ(Stats().quarantined_slots, 0);
}

TEST_P(UcxBothWaysTest, SlotThatIsWrittenTwiceEndsTheConnection) {
  Start();
  RawUcxPeer peer(receiver_->connection_data());
  ASSERT_TRUE(Expect(1, 0, 2 * kSlot).ok());
  peer.Say(RequestOf(1, 2 * kSlot));
  const Grant grant = peer.Await<Grant>().value();
  peer.Write(WrittenOf(grant, 0, kSlot, false), Bytes(kSlot));
  peer.Write(WrittenOf(grant, kSlot, kSlot, true), Bytes(kSlot));
  EXPECT_TRUE(peer.AwaitEnd());
  EXPECT_EQ(Received().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(memory_[kSlot], std::byte{0xee});
}

TEST_P(UcxBothWaysTest, BytesThatWereNotAnnouncedAreRefused) {
  Start();
  RawUcxPeer peer(receiver_->connection_data());
  const std::vector<ucx::Piece> wrong[] = {
      {{.offset = 1, .size = 10}},                                 // not where it begins
      {{.offset = 0, .size = 10}, {.offset = 0, .size = 10}},      // twice
      {{.offset = 0, .size = 10}, {.offset = 10, .size = 91}},     // more than announced
      {{.offset = INT64_MAX - 10, .size = 10}},                    // outside the window
      {{.offset = 0, .size = static_cast<uint32_t>(kSlot + 1)}}};  // more than a slot has
  uint64_t transfer = 1;
  for (const std::vector<ucx::Piece>& pieces : wrong) {
    ASSERT_TRUE(Expect(transfer, 0, 100).ok());
    peer.Say(RequestOf(transfer, 100));
    const Grant grant = peer.Await<Grant>().value();
    Written written = WrittenOf(grant, 0, 1, true);
    written.pieces = pieces;
    size_t size = 0;
    for (const ucx::Piece& piece : pieces) {
      size += piece.size;
    }
    // A put of a byte too many would reach the next slot, which is the peer's too.
    peer.Write(written, Bytes(size));
    EXPECT_EQ(peer.Await<Verdict>().value().code,
              static_cast<int>(absl::StatusCode::kInvalidArgument));
    EXPECT_FALSE(Received().ok());
    ++transfer;
  }
  EXPECT_EQ(memory_[100], std::byte{0xee});
}

TEST_P(UcxBothWaysTest, MessagesThatNameAnotherConnectionAreIgnored) {
  Start();
  RawUcxPeer peer(receiver_->connection_data());
  RawUcxPeer other(receiver_->connection_data());
  ASSERT_TRUE(Expect(1, 0, kSlot).ok());
  other.SayOn(peer.welcome().connection, RequestOf(1, kSlot));
  other.SayOn(12345, RequestOf(1, kSlot));
  EXPECT_FALSE(other.Await<Grant>(absl::Milliseconds(60)).has_value());
  EXPECT_FALSE(peer.Await<Grant>(absl::Milliseconds(20)).has_value());
  peer.Say(RequestOf(1, kSlot));
  EXPECT_TRUE(peer.Await<Grant>().has_value());
}

TEST_P(UcxBothWaysTest, RequestThatIsMadeTwiceEndsTheConnection) {
  Start();
  RawUcxPeer peer(receiver_->connection_data());
  peer.Say(RequestOf(1, kSlot));
  peer.Say(RequestOf(1, kSlot));
  EXPECT_TRUE(peer.AwaitEnd());
}

TEST_P(UcxBothWaysTest, ReceiverThatDiesInMidTransferCompletesEveryPost) {
  UcxPair pair(UcxTransportOptions{.put_without_rdma = GetParam()});
  std::vector<std::byte> memory(64 << 20);
  auto window = *pair.receiver().Register({std::span(memory)}, kernels::HostLanding());
  const auto connection = *pair.sender().Connect(pair.receiver().connection_data());
  const std::vector<std::byte> source(4 << 20, std::byte{5});
  for (uint64_t i = 0; i < 16; ++i) {
    const auto offset = static_cast<int64_t>(i * source.size());
    ASSERT_TRUE(pair.receiver()
                    .Expect({.window = window.get(),
                             .runs = {{offset, static_cast<int64_t>(source.size())}},
                             .transfer_id = i,
                             .tag = i})
                    .ok());
    ASSERT_TRUE(pair.sender()
                    .Post(connection,
                          {.window = window->descriptor(),
                           .runs = {{.offset = offset, .source = source}},
                           .transfer_id = i,
                           .tag = i})
                    .ok());
  }
  window.reset();
  pair.KillReceiver();
  size_t completed = 0;
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (completed < 16 && absl::Now() < deadline) {
    completed += pair.sender().Poll(deadline).size();
  }
  EXPECT_EQ(completed, 16U);
}

// A link that swallows everything looks like this.
TEST(UcxSenderTest, ReceiverThatDoesNotAnswerAnEndedPostLosesItsConnection) {
  const ucx::RawUcxReceiver receiver({.connection = 7, .slot_bytes = 4096, .slots = 1});
  const auto sender = *UcxTransport::Make({});
  const auto connection = *sender->Connect(receiver.address());
  const std::vector<std::byte> source(100);
  uint64_t tag = 0;
  const auto post = [&] {
    return sender->Post(connection,
                        {.window = "w",
                         .runs = {{.offset = 0, .source = source}},
                         .transfer_id = ++tag,
                         .tag = tag,
                         .deadline = absl::Now() + absl::Milliseconds(20)});
  };
  ASSERT_TRUE(post().ok());
  const auto completions = sender->Poll(absl::Now() + absl::Seconds(20));
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Eventually([&] { return absl::IsUnavailable(post()); }));
}

TEST(UcxSenderTest, ReceiverThatTakesNoProbeIsRefusedInTime) {
  const ucx::RawUcxReceiver receiver({.connection = 7, .slot_bytes = 4096, .slots = 1});
  const auto sender = *UcxTransport::Make({.bandwidth_floor = 1e9});
  const absl::Status refused = sender->Connect(receiver.address()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("carries less than 2 Gbit/s"));
}

TEST(UcxSenderTest, SlotsThatItCantWriteToAreRefused) {
  for (const uint32_t slot_bytes : {uint32_t{4095}, uint32_t{ucx::kMaxCarriedBytes + 1}}) {
    const ucx::RawUcxReceiver receiver({.connection = 7, .slot_bytes = slot_bytes, .slots = 1});
    const auto sender = *UcxTransport::Make({});
    EXPECT_EQ(sender->Connect(receiver.address()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(UcxCarrierTest, IsTheTransportOfTheLaneThatPuts) {
  constexpr char kInfo[] =
      "# UCP endpoint\n"
      "#   lane[0]: 12:rc_mlx5/mlx5_0:1 md[4] -> md[4]/ib/sysdev[255] am am_bw#0\n"
      "#   lane[1]:  7:dc_mlx5/mlx5_0:1 md[4] -> md[4]/ib/sysdev[255] rma_bw#0\n";
  EXPECT_EQ(ucx::CarrierOf(kInfo), "ucx/dc_mlx5");
  EXPECT_EQ(ucx::CarrierOf("# lane[0]:  2:tcp/lo.0 md[1] -> md[1]/tcp am am_bw#0\n"), "ucx/tcp");
  EXPECT_EQ(ucx::CarrierOf(""), "ucx/unknown");
  EXPECT_EQ(ucx::CarrierOf("lane[\nlane[0]:\nlane[0]: :\nlane[1]: 3:/ am"), "ucx/unknown");
  EXPECT_TRUE(ucx::IsRdma("ucx/rc_verbs"));
  EXPECT_TRUE(ucx::IsRdma("ucx/dc_mlx5"));
  EXPECT_FALSE(ucx::IsRdma("ucx/tcp"));
  EXPECT_FALSE(ucx::IsRdma("ucx/ud_verbs"));
}

}  // namespace
}  // namespace baton::transport
