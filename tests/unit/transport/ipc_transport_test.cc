// What only the ipc back end does: memory of another process, who may connect, peers that break the
// rules. What every back end owes its callers is in transport_test.cc.
#include "common/transport/ipc/ipc_transport.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "common/transport/ipc/channel.h"
#include "common/transport/ipc/connection_data.h"
#include "common/transport/ipc/listener.h"
#include "common/transport/ipc/message.h"
#include "common/transport/transport.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/memory.h"
#include "kernels/core/shared_blocks.h"
#include "kernels/core/shared_memory.h"

namespace baton::transport {
namespace {

using ipc::Channel;
using ipc::Export;
using ipc::Hello;
using ipc::Imported;
using ipc::Piece;
using ipc::Ready;
using ipc::Release;
using ipc::Request;
using ipc::Verdict;
using ipc::Welcome;
using ipc::Written;

constexpr absl::Duration kLong = absl::Seconds(20);

// The other end of a connection, which keeps no rules but those it is told to.
class RawPeer {
 public:
  explicit RawPeer(ipc::Descriptor socket)
      : channel_(std::make_unique<Channel>(std::move(socket))) {}
  static RawPeer To(const Transport& receiver) {
    return RawPeer(*ipc::Dial(ipc::ConnectionData::Parse(receiver.connection_data())->socket));
  }

  void Say(const ipc::Message& message,
           std::shared_ptr<const kernels::SharedBlock> attached = nullptr) {
    channel_->Send(message, std::move(attached));
  }
  // The next message, which has to be a T; nothing when none comes or the connection ends.
  template <typename T>
  std::optional<T> Await(absl::Duration wait = kLong) {
    const absl::Time deadline = absl::Now() + wait;
    while (absl::Now() < deadline && channel_->status().ok()) {
      channel_->Flush();
      if (const auto received = channel_->Receive()) {
        return std::holds_alternative<T>(received->message)
                   ? std::optional<T>(std::get<T>(received->message))
                   : std::nullopt;
      }
      pollfd polled = {.fd = channel_->fd(), .events = POLLIN, .revents = 0};
      poll(&polled, 1, /*timeout=*/20);
    }
    return std::nullopt;
  }
  // Whether the other side ends the connection; what it says before is dropped.
  bool AwaitEnd() {
    const absl::Time deadline = absl::Now() + kLong;
    while (absl::Now() < deadline && channel_->status().ok()) {
      channel_->Receive();
    }
    return !channel_->status().ok();
  }

 private:
  std::unique_ptr<Channel> channel_;
};

class IpcTransportTest : public testing::Test {
 protected:
  IpcTransportTest() {
    receiver_ = *IpcTransport::Make({.listens = true, .connect_timeout = absl::Milliseconds(300)});
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
    return {.post = transfer_id,
            .transfer_id = transfer_id,
            .total_bytes = total_bytes,
            .window = window_->descriptor()};
  }
  absl::Status Received() {
    const auto completions = receiver_->Poll(absl::Now() + kLong);
    EXPECT_EQ(completions.size(), 1U);
    return completions.empty() ? absl::UnknownError("nothing") : completions[0].status;
  }
  bool Untouched() const {
    return std::all_of(
        memory_.begin(), memory_.end(), [](std::byte byte) { return byte == std::byte{0xee}; });
  }
  // A peer that has said Hello.
  RawPeer Introduced() const {
    RawPeer peer = RawPeer::To(*receiver_);
    peer.Say(Hello{});
    EXPECT_TRUE(peer.Await<Welcome>().has_value());
    return peer;
  }

  static constexpr size_t kWindowBytes = size_t{1} << 20;
  std::unique_ptr<IpcTransport> receiver_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Window> window_;
};

TEST_F(IpcTransportTest, PiecesInSharedMemoryAreReadWhereTheyLie) {
  const kernels::Memory source = *kernels::SharedHostMemory().Allocate(8192);
  std::memset(source.data(), 7, source.size());
  const auto block = kernels::FindShared({source.data(), source.size()})->block;
  ASSERT_TRUE(Expect(1, 100, 300).ok());
  RawPeer peer = Introduced();
  peer.Say(Export{.block = block->id(), .size = block->size()}, block);
  ASSERT_EQ(peer.Await<Imported>()->code, 0);
  peer.Say(RequestOf(1, 300));
  ASSERT_TRUE(peer.Await<Ready>().has_value());
  peer.Say(Written{.post = 1,
                   .pieces = {{.offset = 100, .size = 100, .block = block->id(), .source = 5000}}});
  // What is there when it is told of counts, not what was there when the block was exported.
  std::memset(source.data(), 9, source.size());
  peer.Say(Written{.post = 1,
                   .last = true,
                   .pieces = {{.offset = 200, .size = 100, .block = block->id(), .source = 0},
                              {.offset = 300, .size = 100}},
                   .bytes = std::string(100, 'c')});
  const auto verdict = peer.Await<Verdict>();
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->code, 0) << verdict->message;
  EXPECT_TRUE(Received().ok());
  EXPECT_EQ(memory_[99], std::byte{0xee});
  EXPECT_EQ(memory_[250], std::byte{9});
  EXPECT_EQ(memory_[350], std::byte{'c'});
  EXPECT_EQ(memory_[400], std::byte{0xee});
}

TEST_F(IpcTransportTest, PiecesOfARequestAreReadOnceItIsAnnounced) {
  const kernels::Memory source = *kernels::SharedHostMemory().Allocate(4096);
  std::memset(source.data(), 7, source.size());
  const auto block = kernels::FindShared({source.data(), source.size()})->block;
  RawPeer peer = Introduced();
  peer.Say(Export{.block = block->id(), .size = block->size()}, block);
  ASSERT_EQ(peer.Await<Imported>()->code, 0);
  uint64_t post = 0;
  for (const bool fits : {false, true}) {
    ++post;
    Request request = RequestOf(post, 300);
    request.pieces = {{.offset = 100, .size = 100, .block = block->id(), .source = 1000},
                      {.offset = 200, .size = fits ? 200U : 201U, .block = block->id()}};
    peer.Say(request);
    EXPECT_FALSE(peer.Await<Verdict>(absl::Milliseconds(50)).has_value());
    EXPECT_TRUE(Untouched());
    std::memset(source.data(), 9, source.size());  // what is there when they are read counts
    ASSERT_TRUE(Expect(post, 100, 300).ok());
    const auto verdict = peer.Await<Verdict>();  // and no Ready before
    ASSERT_TRUE(verdict.has_value());
    EXPECT_EQ(verdict->post, post);
    EXPECT_EQ(verdict->code == 0, fits) << verdict->message;
    EXPECT_EQ(Received().ok(), fits);
    if (!fits) {
      std::ranges::fill(memory_, std::byte{0xee});  // the first piece may have been read
    }
  }
  EXPECT_EQ(memory_[99], std::byte{0xee});
  EXPECT_EQ(memory_[100], std::byte{9});
  EXPECT_EQ(memory_[399], std::byte{9});
  EXPECT_EQ(memory_[400], std::byte{0xee});
  // There is nothing left to tell.
  Request request = RequestOf(++post, 1);
  request.pieces = {{.offset = 0, .size = 1, .block = block->id()}};
  peer.Say(request);
  peer.Say(Written{.post = post, .last = true, .pieces = request.pieces});
  EXPECT_TRUE(peer.AwaitEnd());
}

TEST_F(IpcTransportTest, MessagesOutOfPlaceEndTheConnection) {
  const Piece piece = {.offset = 0, .size = 1};
  for (const ipc::Message& message : std::vector<ipc::Message>{
           Hello{},
           Welcome{},
           Ready{.post = 1},
           Verdict{.post = 1},
           Imported{.block = 1},
           Written{.post = 1, .last = true, .pieces = {piece}, .bytes = "x"}}) {
    RawPeer peer = Introduced();
    if (std::holds_alternative<Written>(message)) {
      peer.Say(RequestOf(1, 1));  // which waits: the transfer is not announced
    }
    peer.Say(message);
    EXPECT_TRUE(peer.AwaitEnd()) << message.index();
  }
  RawPeer silent = RawPeer::To(*receiver_);
  silent.Say(Release{.post = 1});
  EXPECT_TRUE(silent.AwaitEnd());
  EXPECT_TRUE(Untouched());
}

TEST_F(IpcTransportTest, PeersThatDoNotIntroduceThemselvesAreDropped) {
  RawPeer peer = RawPeer::To(*receiver_);
  EXPECT_TRUE(peer.AwaitEnd());
}

TEST_F(IpcTransportTest, OnlySealedFilesThatAreLargeEnoughAreMapped) {
  const auto file = [](unsigned seals, off_t size) {
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(ftruncate(fd, size), 0);
    EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
  };
  const int ordinary = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  for (const auto& [fd, fits] : {std::pair(file(F_SEAL_SHRINK, 8192), true),
                                 std::pair(file(F_SEAL_GROW, 8192), false),
                                 std::pair(file(F_SEAL_SHRINK, 8191), false),
                                 std::pair(ordinary, false)}) {
    RawPeer peer = Introduced();
    peer.Say(Export{.block = 1, .size = 8192},
             std::make_shared<kernels::SharedBlock>(fd, 8192, kernels::BlockKind::kHost));
    const auto imported = peer.Await<Imported>();
    ASSERT_TRUE(imported.has_value());
    EXPECT_EQ(imported->block, 1U);
    EXPECT_EQ(imported->code == 0, fits) << imported->message;
  }
}

TEST_F(IpcTransportTest, PiecesOutsideOfBlocksEndTheTransfer) {
  const kernels::Memory source = *kernels::SharedHostMemory().Allocate(4096);
  const auto block = kernels::FindShared({source.data(), source.size()})->block;
  RawPeer peer = Introduced();
  peer.Say(Export{.block = block->id(), .size = block->size()}, block);
  ASSERT_EQ(peer.Await<Imported>()->code, 0);
  uint64_t post = 0;
  for (const Piece& piece : std::vector<Piece>{
           {.offset = 0, .size = 100, .block = block->id() + 1, .source = 0},
           {.offset = 0, .size = 100, .block = block->id(), .source = 3997},
           {.offset = 0, .size = 100, .block = block->id(), .source = INT64_MAX - 100},
           {.offset = 0, .size = INT64_MAX, .block = block->id(), .source = 0},
           {.offset = 1, .size = 100, .block = block->id(), .source = 0},
           {.offset = 0, .size = 101, .block = block->id(), .source = 0}}) {
    ++post;
    ASSERT_TRUE(Expect(post, 0, 100).ok());
    peer.Say(RequestOf(post, 100));
    ASSERT_TRUE(peer.Await<Ready>().has_value());
    peer.Say(Written{.post = post, .last = true, .pieces = {piece}});
    const auto verdict = peer.Await<Verdict>();
    ASSERT_TRUE(verdict.has_value());
    EXPECT_EQ(verdict->code, static_cast<uint8_t>(absl::StatusCode::kInvalidArgument));
    EXPECT_FALSE(Received().ok());
  }
  EXPECT_TRUE(Untouched());
}

TEST_F(IpcTransportTest, ASenderThatGoesInMidTransferEndsItHere) {
  ASSERT_TRUE(Expect(1, 0, 100).ok());
  {
    RawPeer peer = Introduced();
    peer.Say(RequestOf(1, 100));
    ASSERT_TRUE(peer.Await<Ready>().has_value());
    peer.Say(Written{.post = 1, .pieces = {{.offset = 0, .size = 1}}, .bytes = "x"});
  }
  EXPECT_EQ(Received().code(), absl::StatusCode::kUnavailable);
}

TEST_F(IpcTransportTest, LatePiecesOfACancelledTransferReachNothing) {
  ASSERT_TRUE(Expect(1, 0, 100).ok());
  RawPeer peer = Introduced();
  peer.Say(RequestOf(1, 100));
  ASSERT_TRUE(peer.Await<Ready>().has_value());
  window_->CancelTransfers();
  EXPECT_EQ(Received().code(), absl::StatusCode::kCancelled);
  const Written written = {.post = 1,
                           .last = true,
                           .pieces = {{.offset = 0, .size = 100}},
                           .bytes = std::string(100, 'x')};
  peer.Say(written);
  const auto verdict = peer.Await<Verdict>();
  ASSERT_TRUE(verdict.has_value());
  EXPECT_NE(verdict->code, 0);
  peer.Say(written);  // of a post that has its verdict: dropped
  peer.Say(Request{.post = 2, .transfer_id = 2, .total_bytes = 1, .window = "unknown"});
  EXPECT_EQ(peer.Await<Verdict>()->post, 2U);
  EXPECT_TRUE(Untouched());
}

TEST_F(IpcTransportTest, ReleaseIsAnsweredByTheOneVerdictOfItsRequest) {
  RawPeer peer = Introduced();
  peer.Say(RequestOf(1, 100));
  peer.Say(Release{.post = 1});
  peer.Say(Release{.post = 1});
  const auto verdict = peer.Await<Verdict>();
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->code, static_cast<uint8_t>(absl::StatusCode::kCancelled));
  peer.Say(RequestOf(3, 100));
  ASSERT_TRUE(Expect(3, 0, 100).ok());
  EXPECT_EQ(peer.Await<Ready>()->post, 3U);
}

// A receiver that takes a connection and then says nothing, as one that is frozen.
class FrozenReceiverTest : public testing::Test {
 protected:
  FrozenReceiverTest() {
    data_ = *ipc::ConnectionData::Make();
    listener_ = *ipc::Listen(data_.socket);
    sender_ = *IpcTransport::Make({.connect_timeout = absl::Milliseconds(200)});
  }
  // Connects, and welcomes the sender in its turn; then it maps so many blocks.
  std::shared_ptr<Connection> Connect(std::optional<RawPeer>& receiver, int blocks = 0) {
    std::shared_ptr<Connection> connection;
    std::thread connecting([&] { connection = *sender_->Connect(data_.ToString()); });
    while (!receiver.has_value()) {
      if (absl::StatusOr<ipc::Descriptor> socket = ipc::Accept(listener_); socket.ok()) {
        receiver.emplace(*std::move(socket));
        receiver->Say(Welcome{});
      }
    }
    for (int i = 0; i < blocks; ++i) {
      EXPECT_TRUE(i > 0 || receiver->Await<Hello>().has_value());
      const auto exported = receiver->Await<Export>();
      EXPECT_TRUE(exported.has_value());
      receiver->Say(Imported{.block = exported.value_or(Export{}).block});
    }
    connecting.join();
    return connection;
  }
  absl::Status PostOne(const std::shared_ptr<Connection>& connection, absl::Time deadline) {
    return sender_->Post(connection,
                         {.window = "w",
                          .runs = {{.offset = 0, .source = bytes_}},
                          .transfer_id = 1,
                          .tag = 5,
                          .deadline = deadline});
  }
  absl::Status Sent() {
    const auto completions = sender_->Poll(absl::Now() + kLong);
    return completions.size() == 1 ? completions[0].status : absl::UnknownError("nothing");
  }

  const std::vector<std::byte> bytes_ = std::vector<std::byte>(100000, std::byte{1});
  ipc::ConnectionData data_;
  ipc::Descriptor listener_;
  std::unique_ptr<IpcTransport> sender_;
};

TEST_F(FrozenReceiverTest, ConnectGivesUp) {
  EXPECT_EQ(sender_->Connect(data_.ToString()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(FrozenReceiverTest, APostThatIsCancelledCompletesThoughNoVerdictComes) {
  std::optional<RawPeer> receiver;
  const auto connection = Connect(receiver);
  ASSERT_TRUE(PostOne(connection, absl::InfiniteFuture()).ok());
  sender_->CancelPost(5);
  EXPECT_EQ(Sent().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(receiver->AwaitEnd());  // nothing is read of what is given up any more
  EXPECT_EQ(PostOne(connection, absl::InfiniteFuture()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(FrozenReceiverTest, APostPastItsDeadlineCompletesThoughNoVerdictComes) {
  std::optional<RawPeer> receiver;
  const auto connection = Connect(receiver);
  ASSERT_TRUE(PostOne(connection, absl::Now() + absl::Milliseconds(50)).ok());
  EXPECT_EQ(Sent().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(FrozenReceiverTest, APostThatLiesInSharedMemoryIsToldWithItsRequest) {
  const kernels::Memory source = *kernels::SharedHostMemory().Allocate(8192);
  const std::span<const std::byte> bytes(source.data(), source.size());
  std::optional<RawPeer> receiver;
  const auto connection = Connect(receiver, /*blocks=*/1);
  for (const bool asks : {false, true}) {
    ASSERT_TRUE(sender_
                    ->Post(connection,
                           {.window = "w",
                            .runs = {{.offset = 100, .source = bytes.subspan(16, 4096)},
                                     {.offset = 9000, .source = bytes.first(10)}},
                            .transfer_id = 1,
                            .tag = 5,
                            .deadline = absl::InfiniteFuture()})
                    .ok());
    const auto request = receiver->Await<Request>();
    ASSERT_TRUE(request.has_value());
    ASSERT_EQ(request->pieces.size(), 2U);
    EXPECT_EQ(request->pieces[0].offset, 100U);
    EXPECT_EQ(request->pieces[0].size, 4096U);
    EXPECT_EQ(request->pieces[0].source, request->pieces[1].source + 16);
    EXPECT_EQ(request->pieces[1].offset, 9000U);
    EXPECT_EQ(request->pieces[1].size, 10U);
    if (asks) {
      receiver->Say(Ready{.post = request->post});  // there is nothing left to tell
    } else {
      receiver->Say(Verdict{.post = request->post});
    }
    EXPECT_EQ(Sent().code(), asks ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk);
  }
}

TEST_F(FrozenReceiverTest, VerdictsThatCanNotBeEndTheConnection) {
  for (const ipc::Message& message :
       std::vector<ipc::Message>{Verdict{.post = 1},  // OK before anything was told
                                 Verdict{.post = 77, .code = 1},
                                 Release{.post = 1},
                                 Welcome{},             // a second one
                                 Imported{.block = 1},  // of nothing that was exported
                                 Hello{}}) {
    std::optional<RawPeer> receiver;
    const auto connection = Connect(receiver);
    ASSERT_TRUE(PostOne(connection, absl::InfiniteFuture()).ok());
    ASSERT_TRUE(receiver->Await<Hello>().has_value());
    ASSERT_TRUE(receiver->Await<Request>().has_value());
    receiver->Say(message);
    EXPECT_EQ(Sent().code(), absl::StatusCode::kUnavailable) << message.index();
  }
}

}  // namespace
}  // namespace baton::transport
