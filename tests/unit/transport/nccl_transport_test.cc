// What is particular to pairs of devices: slots, the word that both ends give, peers that break the
// rules. The devices are memory that the host can't touch, the link is a copy between such blocks.
#include "common/transport/nccl/nccl_transport.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/sync_stream.h"

#include "common/transport/nccl/link_sizes.h"
#include "common/transport/transport.h"
#include "kernels/core/device_link.h"
#include "kernels/core/memory.h"
#include "proto/baton/worker/v1/kv_link.pb.h"
#include "proto/baton/worker/v1/kv_transfer.grpc.pb.h"
#include "tests/kernels/device_double/guarded_memory.h"
#include "tests/kernels/device_double/local_links.h"
#include "tests/unit/transport/raw_link_sender.h"
#include "tests/unit/transport/transport_pair.h"

namespace baton::transport {
namespace {

using worker::v1::LinkMessage;

constexpr absl::Duration kLong = absl::Seconds(20);
constexpr size_t kWindowBytes = size_t{512} << 10;
constexpr uint32_t kSeed = 20261125;

kernels::GuardedMemory& Device() { return kernels::GuardedMemory::Get(); }

std::string RandomText(size_t size, uint32_t seed) {
  std::mt19937 random(kSeed + seed);
  std::string text(size, '\0');
  for (char& c : text) {
    c = static_cast<char>(random());
  }
  return text;
}

kernels::Memory OnDevice(const std::string& bytes) {
  kernels::Memory memory = *Device().Allocate(bytes.size());
  EXPECT_TRUE(Device().Upload(memory.data(), bytes.data(), bytes.size()).ok());
  return memory;
}

std::string FromDevice(const std::byte* data, size_t size) {
  std::string bytes(size, '\0');
  EXPECT_TRUE(Device().Download(bytes.data(), data, size).ok());
  return bytes;
}

LinkMessage Carried(uint64_t post, uint64_t offset, const std::string& bytes, bool last = true) {
  LinkMessage message;
  worker::v1::LinkChunk& chunk = *message.mutable_chunk();
  chunk.set_post(post);
  chunk.set_last(last);
  chunk.set_carried(bytes);
  worker::v1::LinkPiece& piece = *chunk.add_pieces();
  piece.set_offset(offset);
  piece.set_size(bytes.size());
  return message;
}

class NcclTransportTest : public testing::Test {
 protected:
  NcclTransportTest()
      : pair_(Device(), Device().landing(), /*block_budget=*/kernels::LinkSizes{}.max_blocks),
        memory_(OnDevice(std::string(kWindowBytes, '\xee'))),
        window_(*receiver().Register({{memory_.data(), kWindowBytes}}, Device().landing())) {}

  NcclTransport& receiver() { return dynamic_cast<NcclTransport&>(pair_.receiver()); }
  std::shared_ptr<Connection> Connect() {
    return *pair_.sender().Connect(receiver().connection_data());
  }
  absl::Status Expect(uint64_t transfer_id, std::vector<ReceiveRun> runs) {
    return receiver().Expect({.window = window_.get(),
                              .runs = std::move(runs),
                              .transfer_id = transfer_id,
                              .tag = transfer_id,
                              .checksum = Checksum::kWordSum});
  }
  PostParams PostOf(uint64_t transfer_id, std::vector<SendRun> runs) const {
    return {.window = window_->descriptor(),
            .runs = std::move(runs),
            .transfer_id = transfer_id,
            .tag = transfer_id};
  }
  static absl::Status Next(Transport& transport) {
    const std::vector<Completion> completions = transport.Poll(absl::Now() + kLong);
    EXPECT_EQ(completions.size(), 1U);
    return completions.empty() ? absl::UnknownError("nothing") : completions.front().status;
  }
  std::string InWindow(int64_t offset, size_t size) const {
    return FromDevice(memory_.data() + offset, size);
  }
  bool Untouched() const { return InWindow(0, kWindowBytes) == std::string(kWindowBytes, '\xee'); }
  // A sender that is up.
  std::unique_ptr<RawLinkSender> Introduced() {
    const std::string id = *links_.NewId();
    ends_.push_back(*links_.Open(
        id, kernels::LinkEnd::kSender, {.slot_bytes = NcclPair::kSlotBytes, .max_blocks = 4}));
    auto peer = std::make_unique<RawLinkSender>(receiver().connection_data());
    peer->Say(LinkHelloOf(id));
    EXPECT_TRUE(peer->Await()->has_up());
    return peer;
  }
  LinkMessage RequestOf(uint64_t transfer_id, uint64_t total_bytes) const {
    LinkMessage message;
    message.mutable_request()->set_post(transfer_id);
    message.mutable_request()->set_transfer_id(transfer_id);
    message.mutable_request()->set_total_bytes(total_bytes);
    message.mutable_request()->set_window(window_->descriptor());
    return message;
  }

  kernels::LocalLinks links_{Device()};
  NcclPair pair_;
  std::vector<std::unique_ptr<kernels::DeviceLink>> ends_;  // of raw senders
  kernels::Memory memory_;
  std::unique_ptr<Window> window_;
};

TEST_F(NcclTransportTest, BytesOfTheDeviceGoThroughSlotsToTheirPlaces) {
  const std::string bytes = RandomText(300 << 10, 1);
  const kernels::Memory source = OnDevice(bytes);
  const std::shared_ptr<Connection> connection = Connect();
  EXPECT_TRUE(connection->reads_devices());
  EXPECT_EQ(connection->carrier(), "nccl");
  // Pieces of other sizes than slots have, the second half in front of the first.
  constexpr int64_t kHalf = 150 << 10;
  const std::span<const std::byte> all(source.data(), bytes.size());
  ASSERT_TRUE(Expect(1, {{200 << 10, kHalf}, {8, kHalf}}).ok());
  ASSERT_TRUE(
      pair_.sender()
          .Post(connection, PostOf(1, {{200 << 10, all.first(kHalf)}, {8, all.subspan(kHalf)}}))
          .ok());
  EXPECT_TRUE(Next(receiver()).ok());
  EXPECT_TRUE(Next(pair_.sender()).ok());
  EXPECT_EQ(InWindow(200 << 10, kHalf), bytes.substr(0, kHalf));
  EXPECT_EQ(InWindow(8, kHalf), bytes.substr(kHalf));
  EXPECT_EQ(InWindow(0, 8), std::string(8, '\xee'));
  EXPECT_EQ(pair_.sender_links().sent_bytes(), static_cast<int64_t>(bytes.size()));
}

TEST_F(NcclTransportTest, PostsOfDeviceAndHostShareALink) {
  constexpr uint64_t kPosts = 6;
  constexpr size_t kBytes = 80 << 10;
  const std::shared_ptr<Connection> connection = Connect();
  std::vector<std::string> bytes;
  std::vector<kernels::Memory> sources;
  for (uint64_t i = 0; i < kPosts; ++i) {
    bytes.push_back(RandomText(kBytes, static_cast<uint32_t>(i)));
    sources.push_back(OnDevice(bytes.back()));
  }
  for (uint64_t i = 0; i < kPosts; ++i) {
    const auto offset = static_cast<int64_t>(i * kBytes);
    ASSERT_TRUE(Expect(i, {{offset, kBytes}}).ok());
    const std::span<const std::byte> device(sources[i].data(), kBytes);
    const std::span<const std::byte> host = std::as_bytes(std::span(bytes[i]));
    // Odd ones change over in the middle.
    const size_t cut = i % 2 == 1 ? kBytes / 2 : kBytes;
    std::vector<SendRun> runs = {{offset, device.first(cut)}};
    if (cut != kBytes) {
      runs.push_back({offset + static_cast<int64_t>(cut), host.subspan(cut)});
    }
    ASSERT_TRUE(pair_.sender().Post(connection, PostOf(i, std::move(runs))).ok());
  }
  size_t received = 0;
  while (received < kPosts) {
    const std::vector<Completion> completions = receiver().Poll(absl::Now() + kLong);
    ASSERT_FALSE(completions.empty());
    for (const Completion& completion : completions) {
      EXPECT_TRUE(completion.status.ok()) << completion.status;
    }
    received += completions.size();
  }
  for (uint64_t i = 0; i < kPosts; ++i) {
    EXPECT_EQ(InWindow(static_cast<int64_t>(i * kBytes), kBytes), bytes[i]) << i;
  }
}

// Calls of a frozen process are not made.
class FrozenEndTest : public NcclTransportTest {
 protected:
  void PostToFrozen() {
    source_ = OnDevice(RandomText(200 << 10, 3));
    connection_ = Connect();
    ASSERT_TRUE(Expect(1, {{0, 200 << 10}}).ok());
    begin_ = absl::Now();
    ASSERT_TRUE(pair_.sender()
                    .Post(connection_, PostOf(1, {{0, {source_.data(), size_t{200} << 10}}}))
                    .ok());
  }
  void ExpectLost() {
    EXPECT_EQ(Next(pair_.sender()).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Next(receiver()).code(), absl::StatusCode::kUnavailable);
    EXPECT_LT(absl::Now() - begin_, nccl::kStuck + absl::Seconds(8));
    EXPECT_TRUE(Untouched());
    EXPECT_EQ(pair_.sender().Post(connection_, PostOf(2, {{0, {source_.data(), 8}}})).code(),
              absl::StatusCode::kUnavailable);
    EXPECT_TRUE(pair_.sender().Connect(receiver().connection_data()).ok());
  }

  kernels::Memory source_;
  std::shared_ptr<Connection> connection_;
  absl::Time begin_;
};

TEST_F(FrozenEndTest, AReceiverThatStopsBetweenWordAndDeedIsGivenUp) {
  pair_.receiver_links().Freeze();
  PostToFrozen();
  ExpectLost();
}

TEST_F(FrozenEndTest, ASenderThatStopsIsGivenUp) {
  pair_.sender_links().Freeze();
  PostToFrozen();
  ExpectLost();
}

TEST_F(FrozenEndTest, CancelDoesNotWaitForAChunkUnderWay) {
  pair_.sender_links().Freeze();
  PostToFrozen();
  absl::SleepFor(absl::Milliseconds(100));
  window_->CancelTransfers();
  EXPECT_LT(absl::Now() - begin_, nccl::kStuck);
  EXPECT_EQ(Next(receiver()).code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(Next(pair_.sender()).ok());
  EXPECT_TRUE(Untouched());
}

TEST_F(FrozenEndTest, ALinkThatFindsTheGpuTakenWaitsForItsTurn) {
  kernels::LocalLinks links(Device());
  const auto other = *NcclTransport::Make({.links = &links,
                                           .credentials = grpc::InsecureChannelCredentials(),
                                           .sizes = {.slot_bytes = NcclPair::kSlotBytes}});
  const std::shared_ptr<Connection> connection = *other->Connect(receiver().connection_data());
  const std::string bytes = RandomText(200 << 10, 4);
  const kernels::Memory source = OnDevice(bytes);
  pair_.sender_links().Freeze();
  PostToFrozen();
  absl::SleepFor(absl::Milliseconds(100));
  ASSERT_TRUE(Expect(2, {{256 << 10, 200 << 10}}).ok());
  ASSERT_TRUE(
      other->Post(connection, PostOf(2, {{256 << 10, {source.data(), bytes.size()}}})).ok());
  // The frozen one is given up, then it is the other's turn.
  EXPECT_EQ(Next(receiver()).code(), absl::StatusCode::kUnavailable);
  EXPECT_GE(absl::Now() - begin_, nccl::kStuck);
  EXPECT_TRUE(Next(receiver()).ok());
  EXPECT_TRUE(Next(*other).ok());
  EXPECT_EQ(InWindow(256 << 10, bytes.size()), bytes);
}

TEST_F(NcclTransportTest, ASenderThatGoesInMidTransferEndsItHere) {
  ASSERT_TRUE(Expect(1, {{0, 96}}).ok());
  {
    const auto peer = Introduced();
    peer->Say(RequestOf(1, 96));
    ASSERT_TRUE(peer->Await()->has_ready());
    peer->Say(Carried(1, 0, "01234567", /*last=*/false));
    ASSERT_TRUE(peer->Await()->has_go());
  }
  EXPECT_EQ(Next(receiver()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(NcclTransportTest, HellosThatCantBeMetEndTheStream) {
  const std::vector<std::function<void(worker::v1::LinkHello&)>> changes = {
      [](worker::v1::LinkHello& hello) { hello.set_version(nccl::kLinkVersion + 1); },
      [](worker::v1::LinkHello& hello) { hello.set_slot_bytes(0); },
      [](worker::v1::LinkHello& hello) { hello.set_slot_bytes(nccl::kMaxSlotBytes + 1); },
      [](worker::v1::LinkHello& hello) { hello.set_max_blocks(0); },
      [](worker::v1::LinkHello& hello) { hello.set_max_blocks(nccl::kMaxBlocks + 1); },
      [](worker::v1::LinkHello& hello) { hello.set_id("no pair"); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    LinkMessage hello = LinkHelloOf(*links_.NewId());
    changes[i](*hello.mutable_hello());
    RawLinkSender peer(receiver().connection_data());
    peer.Say(hello);
    EXPECT_TRUE(peer.AwaitEnd()) << i;
  }
}

TEST_F(NcclTransportTest, MessagesOutOfPlaceEndTheStream) {
  std::vector<LinkMessage> messages = {LinkHelloOf("again"), LinkMessage(), Carried(1, 0, "x")};
  messages.emplace_back().mutable_up();
  messages.emplace_back().mutable_go();
  messages.emplace_back().mutable_ready()->set_post(1);
  messages.emplace_back().mutable_verdict()->set_post(1);
  messages.push_back(RequestOf(1, 1));  // a second time
  for (const LinkMessage& message : messages) {
    const auto peer = Introduced();
    peer->Say(RequestOf(1, 1));  // which waits: the transfer is not announced
    peer->Say(message);
    EXPECT_TRUE(peer->AwaitEnd()) << message.ShortDebugString();
  }
  RawLinkSender silent(receiver().connection_data());
  silent.Say(RequestOf(1, 1));
  EXPECT_TRUE(silent.AwaitEnd());
  EXPECT_TRUE(Untouched());
}

TEST_F(NcclTransportTest, ChunksThatCantBeEndTheStream) {
  const std::vector<std::function<void(worker::v1::LinkChunk&)>> changes = {
      [](worker::v1::LinkChunk& chunk) { chunk.clear_pieces(); },
      [](worker::v1::LinkChunk& chunk) { chunk.mutable_pieces(0)->set_size(0); },
      [](worker::v1::LinkChunk& chunk) { chunk.mutable_pieces(0)->set_size(7); },
      [](worker::v1::LinkChunk& chunk) { chunk.mutable_pieces(0)->set_size(UINT64_MAX); },
      [](worker::v1::LinkChunk& chunk) { chunk.mutable_pieces(0)->set_offset(UINT64_MAX); },
      [](worker::v1::LinkChunk& chunk) {
        chunk.clear_carried();
        chunk.mutable_pieces(0)->set_size(NcclPair::kSlotBytes + 1);
      },
      [](worker::v1::LinkChunk& chunk) {
        chunk.clear_carried();
        for (int i = 0; i < nccl::kMaxPieces; ++i) {
          *chunk.add_pieces() = chunk.pieces(0);
        }
      }};
  uint64_t post = 0;
  for (const auto& change : changes) {
    ++post;
    ASSERT_TRUE(Expect(post, {{0, 8}}).ok());
    const auto peer = Introduced();
    peer->Say(RequestOf(post, 8));
    ASSERT_TRUE(peer->Await()->has_ready());
    LinkMessage message = Carried(post, 0, "01234567");
    change(*message.mutable_chunk());
    peer->Say(message);
    EXPECT_TRUE(peer->AwaitEnd()) << post;
    EXPECT_FALSE(Next(receiver()).ok());
  }
  EXPECT_TRUE(Untouched());
}

TEST_F(NcclTransportTest, PiecesOutsideOfTheirTransferEndItAlone) {
  const auto peer = Introduced();
  uint64_t post = 0;
  for (const uint64_t offset : {uint64_t{8}, uint64_t{kWindowBytes}, uint64_t{INT64_MAX} - 4}) {
    ++post;
    ASSERT_TRUE(Expect(post, {{0, 8}}).ok());
    peer->Say(RequestOf(post, 8));
    ASSERT_TRUE(peer->Await()->has_ready());
    peer->Say(Carried(post, offset, "01234567"));
    ASSERT_TRUE(peer->Await()->has_go());
    const auto verdict = peer->Await();
    ASSERT_TRUE(verdict->has_verdict());
    EXPECT_EQ(verdict->verdict().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
    EXPECT_FALSE(Next(receiver()).ok());
  }
  EXPECT_TRUE(Untouched());
}

TEST_F(NcclTransportTest, StreamsOfADrainingReceiverEndWithTheLastWindow) {
  const auto peer = Introduced();
  receiver().Drain();
  ASSERT_TRUE(Expect(1, {{0, 8}}).ok());
  peer->Say(RequestOf(1, 8));
  ASSERT_TRUE(peer->Await()->has_ready());
  peer->Say(Carried(1, 0, "01234567"));
  EXPECT_TRUE(Next(receiver()).ok());
  window_.reset();
  EXPECT_TRUE(peer->AwaitEnd());
  RawLinkSender late(receiver().connection_data());
  EXPECT_TRUE(late.AwaitEnd());
}

// A receiver that connects its end and answers the first chunk, or the request, as it is told to.
class RawReceiver final : public worker::v1::KvTransfer::Service {
 public:
  using Answer = std::function<std::vector<LinkMessage>(const LinkMessage&)>;

  explicit RawReceiver(Answer answer) : answer_(std::move(answer)) {}
  grpc::Status Link(grpc::ServerContext* /*context*/,
                    grpc::ServerReaderWriter<LinkMessage, LinkMessage>* stream) override {
    std::unique_ptr<kernels::DeviceLink> end;
    LinkMessage message;
    while (stream->Read(&message)) {
      if (message.has_hello()) {
        end = *links_.Open(message.hello().id(),
                           kernels::LinkEnd::kReceiver,
                           {.slot_bytes = message.hello().slot_bytes()});
        LinkMessage up;
        up.mutable_up();
        stream->Write(up);
      }
      for (const LinkMessage& answer : answer_(message)) {
        stream->Write(answer);
      }
    }
    return grpc::Status::OK;
  }

 private:
  const Answer answer_;
  kernels::LocalLinks links_{Device()};
};

TEST_F(NcclTransportTest, AReceiverThatBreaksTheRulesLosesTheConnection) {
  LinkMessage go;
  go.mutable_go();
  LinkMessage ready;
  ready.mutable_ready()->set_post(1);
  LinkMessage done;
  done.mutable_verdict()->set_post(1);
  LinkMessage unknown;
  unknown.mutable_verdict()->set_post(2);
  const std::string bytes(8, 'x');
  for (const std::vector<LinkMessage>& answers : {std::vector{go},
                                                  std::vector{done},  // before a byte has gone
                                                  std::vector{unknown},
                                                  std::vector{ready, ready},
                                                  std::vector{RequestOf(1, 1)},
                                                  std::vector{LinkMessage()}}) {
    RawReceiver service([&answers](const LinkMessage& message) {
      return message.has_request() ? answers : std::vector<LinkMessage>();
    });
    LocalServer server;
    const std::string address = server.Start(service);
    const std::shared_ptr<Connection> connection = *pair_.sender().Connect(address);
    ASSERT_TRUE(
        pair_.sender().Post(connection, PostOf(1, {{0, std::as_bytes(std::span(bytes))}})).ok());
    EXPECT_EQ(Next(pair_.sender()).code(), absl::StatusCode::kUnavailable)
        << answers.front().ShortDebugString();
    server.Stop();
  }
}

}  // namespace
}  // namespace baton::transport
