// What every transport owes its callers; runs over loopback, local sockets, and gRPC and
// UCX on 127.0.0.1.
#include "common/transport/transport.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/base/xxh3.h"
#include "common/transport/ucx/ucx_transport.h"
#include "kernels/core/landing_memory.h"
#include "tests/unit/transport/transport_pair.h"

namespace baton::transport {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);
constexpr absl::Duration kShort = absl::Milliseconds(60);

std::vector<std::byte> RandomBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random());
  }
  return bytes;
}

class TransportTest : public testing::TestWithParam<const char*> {
 protected:
  TransportTest() : pair_(TransportPair::Make(GetParam())) { Start(); }
  ~TransportTest() override { Stop(); }

  void Start() {
    memory_.assign(kWindowBytes, std::byte{0xee});
    window_ = *pair_->receiver().Register(
        {std::span(memory_).first(kWindowBytes / 2), std::span(memory_).subspan(kWindowBytes / 2)},
        kernels::HostLanding());
    connection_ = *pair_->sender().Connect(pair_->receiver().connection_data());
    // Loopback executes posts in Poll, so the sender is polled all the time.
    stop_ = false;
    poller_ = std::thread([this] {
      while (!stop_) {
        for (Completion& completion : pair_->sender().Poll(absl::Now() + absl::Milliseconds(10))) {
          absl::MutexLock lock(&mutex_);
          sent_.push_back(std::move(completion));
        }
      }
    });
  }
  void Stop() {
    stop_ = true;
    poller_.join();
  }

  PostParams MakePost(uint64_t transfer_id, int64_t offset, std::span<const std::byte> source) {
    return PostParams{.window = window_->descriptor(),
                      .runs = {{.offset = offset, .source = pair_->Place(source)}},
                      .transfer_id = transfer_id,
                      .tag = 100 + transfer_id};
  }
  absl::Status Expect(uint64_t transfer_id, int64_t offset, int64_t size_bytes) {
    return pair_->receiver().Expect(ExpectParams{.window = window_.get(),
                                                 .runs = {{offset, size_bytes}},
                                                 .transfer_id = transfer_id,
                                                 .tag = 200 + transfer_id});
  }
  std::optional<Completion> NextSent(absl::Duration wait = kLong) {
    absl::MutexLock lock(&mutex_);
    const auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !sent_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&any), wait)) {
      return std::nullopt;
    }
    Completion completion = sent_.front();
    sent_.erase(sent_.begin());
    return completion;
  }
  std::optional<Completion> NextReceived(absl::Duration wait = kLong) {
    const absl::Time deadline = absl::Now() + wait;
    while (received_.empty() && absl::Now() < deadline) {
      received_ = pair_->receiver().Poll(deadline);
    }
    if (received_.empty()) {
      return std::nullopt;
    }
    Completion completion = received_.front();
    received_.erase(received_.begin());
    return completion;
  }
  bool MemoryUntouched() const {
    return std::all_of(
        memory_.begin(), memory_.end(), [](std::byte byte) { return byte == std::byte{0xee}; });
  }

  static constexpr size_t kWindowBytes = size_t{5} << 20;
  std::unique_ptr<TransportPair> pair_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Window> window_;
  std::shared_ptr<Connection> connection_;
  std::vector<Completion> received_;
  std::atomic<bool> stop_{false};
  std::thread poller_;
  absl::Mutex mutex_;
  std::vector<Completion> sent_ ABSL_GUARDED_BY(mutex_);
};

TEST_P(TransportTest, BytesLandInPlaceAcrossExtentsAndBothSidesComplete) {
  const std::vector<std::byte> source = RandomBytes(3 << 20, 1);
  const int64_t offset = 12345;  // crosses the border of the two extents
  ASSERT_TRUE(Expect(1, offset, 3 << 20).ok());
  ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(1, offset, source)).ok());
  const auto received = NextReceived();
  ASSERT_TRUE(received.has_value());
  EXPECT_TRUE(received->status.ok()) << received->status;
  EXPECT_EQ(received->kind, CompletionKind::kReceived);
  EXPECT_EQ(received->tag, 201u);
  EXPECT_EQ(received->bytes, 3 << 20);
  EXPECT_EQ(received->checksum, Xxh3(source));
  const auto sent = NextSent();
  ASSERT_TRUE(sent.has_value());
  EXPECT_TRUE(sent->status.ok()) << sent->status;
  EXPECT_EQ(sent->tag, 101u);
  EXPECT_EQ(std::memcmp(memory_.data() + offset, source.data(), source.size()), 0);
  EXPECT_EQ(memory_[offset - 1], std::byte{0xee});
  EXPECT_EQ(memory_[offset + (3 << 20)], std::byte{0xee});
}

TEST_P(TransportTest, ManySmallRunsArriveAsOneTransfer) {
  const std::vector<std::byte> source = RandomBytes(64 * 1000, 2);
  PostParams post = MakePost(1, 0, {});
  post.runs.clear();
  std::vector<ReceiveRun> runs;
  const std::span<const std::byte> placed = pair_->Place(source);
  for (int i = 0; i < 1000; ++i) {
    const int64_t offset = i < 500 ? i * 64 : 100'000 + i * 64;
    post.runs.push_back({offset, placed.subspan(static_cast<size_t>(i) * 64, 64)});
    runs.push_back({offset, 64});
  }
  ASSERT_TRUE(pair_->receiver()
                  .Expect({.window = window_.get(), .runs = runs, .transfer_id = 1, .tag = 7})
                  .ok());
  ASSERT_TRUE(pair_->sender().Post(connection_, post).ok());
  const std::optional<Completion> received = NextReceived();
  ASSERT_TRUE(received.has_value());
  EXPECT_TRUE(received->status.ok());
  EXPECT_EQ(received->checksum, Xxh3(source));
  EXPECT_TRUE(NextSent()->status.ok());
  EXPECT_EQ(std::memcmp(memory_.data(), source.data(), 500 * 64), 0);
  EXPECT_EQ(std::memcmp(memory_.data() + 100'000 + 500 * 64, source.data() + 500 * 64, 500 * 64),
            0);
}

TEST_P(TransportTest, BytesWaitForTheirAnnouncement) {
  const std::vector<std::byte> source = RandomBytes(2 << 20, 3);
  ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(1, 0, source)).ok());
  EXPECT_FALSE(NextSent(kShort).has_value());
  EXPECT_TRUE(MemoryUntouched());
  ASSERT_TRUE(Expect(1, 0, 2 << 20).ok());
  EXPECT_TRUE(NextReceived()->status.ok());
  EXPECT_TRUE(NextSent()->status.ok());
  EXPECT_EQ(std::memcmp(memory_.data(), source.data(), source.size()), 0);
}

TEST_P(TransportTest, UnannouncedPostEndsAtItsDeadline) {
  const std::vector<std::byte> source = RandomBytes(100, 4);
  PostParams post = MakePost(1, 0, source);
  post.deadline = absl::Now() + kShort;
  ASSERT_TRUE(pair_->sender().Post(connection_, post).ok());
  const auto sent = NextSent();
  ASSERT_TRUE(sent.has_value());
  EXPECT_EQ(sent->status.code(), absl::StatusCode::kDeadlineExceeded) << sent->status;
  EXPECT_TRUE(MemoryUntouched());
}

TEST_P(TransportTest, CancelledPostCompletesAndTheReceiverHearsOfIt) {
  const std::vector<std::byte> source = RandomBytes(100, 5);
  ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(1, 0, source)).ok());
  EXPECT_FALSE(NextSent(kShort).has_value());
  pair_->sender().CancelPost(101);
  pair_->sender().CancelPost(999);  // unknown: ignored
  EXPECT_EQ(NextSent()->status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(MemoryUntouched());
}

TEST_P(TransportTest, UnknownWindowIsRefused) {
  const std::vector<std::byte> source = RandomBytes(100, 6);
  PostParams post = MakePost(1, 0, source);
  post.window.front() = static_cast<char>(post.window.front() ^ 1);
  ASSERT_TRUE(Expect(1, 0, 100).ok());
  ASSERT_TRUE(pair_->sender().Post(connection_, post).ok());
  EXPECT_EQ(NextSent()->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(MemoryUntouched());
}

// Catalogue T14
TEST_P(TransportTest, WithdrawnWindowRefusesLateWritesAndEndsWaitingOnes) {
  const std::vector<std::byte> source = RandomBytes(2 << 20, 7);
  ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(1, 0, source)).ok());  // waits
  EXPECT_FALSE(NextSent(kShort).has_value());
  ASSERT_TRUE(Expect(2, 0, 2 << 20).ok());
  const PostParams late = MakePost(2, 0, source);
  window_.reset();
  EXPECT_EQ(NextSent()->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(NextReceived()->status.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(pair_->sender().Post(connection_, late).ok());
  EXPECT_EQ(NextSent()->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(MemoryUntouched());
}

TEST_P(TransportTest, CancelledTransfersCantWriteWhileLaterOnesCan) {
  const std::vector<std::byte> source = RandomBytes(1000, 8);
  ASSERT_TRUE(Expect(1, 0, 1000).ok());
  window_->CancelTransfers();
  EXPECT_EQ(NextReceived()->status.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(1, 0, source)).ok());
  EXPECT_EQ(NextSent()->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(MemoryUntouched());
  ASSERT_TRUE(Expect(2, 0, 1000).ok());
  ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(2, 0, source)).ok());
  EXPECT_TRUE(NextReceived()->status.ok());
  EXPECT_TRUE(NextSent()->status.ok());
}

TEST_P(TransportTest, CompleteTransferCantBeWrittenAgain) {
  const std::vector<std::byte> source = RandomBytes(1000, 9);
  const std::vector<std::byte> other = RandomBytes(1000, 10);
  ASSERT_TRUE(Expect(1, 0, 1000).ok());
  ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(1, 0, source)).ok());
  EXPECT_TRUE(NextReceived()->status.ok());
  EXPECT_TRUE(NextSent()->status.ok());
  ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(1, 0, other)).ok());
  EXPECT_EQ(NextSent()->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::memcmp(memory_.data(), source.data(), source.size()), 0);
  EXPECT_EQ(Expect(1, 0, 1000).code(), absl::StatusCode::kAlreadyExists);
}

TEST_P(TransportTest, BytesOutsideTheAnnouncedRunsAreRefused) {
  const std::vector<std::byte> source = RandomBytes(1000, 11);
  ASSERT_TRUE(Expect(1, 5000, 1000).ok());
  ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(1, 4999, source)).ok());
  EXPECT_EQ(NextSent()->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(NextReceived()->status.ok());
  ASSERT_TRUE(Expect(2, 5000, 999).ok());  // one byte fewer than is sent
  ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(2, 5000, source)).ok());
  EXPECT_EQ(NextSent()->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(NextReceived()->status.ok());
  EXPECT_TRUE(MemoryUntouched());
}

TEST_P(TransportTest, FewerBytesThanAnnouncedIsATotalMismatch) {
  const std::vector<std::byte> source = RandomBytes(1000, 12);
  ASSERT_TRUE(Expect(1, 0, 1001).ok());
  ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(1, 0, source)).ok());
  EXPECT_EQ(NextSent()->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(NextReceived()->status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(TransportTest, RunsOutsideTheWindowCantBeAnnounced) {
  const auto size = static_cast<int64_t>(kWindowBytes);
  EXPECT_EQ(Expect(1, -1, 10).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Expect(1, size - 9, 10).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Expect(1, size, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Expect(1, INT64_MAX, 10).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Expect(1, 10, INT64_MAX).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Expect(1, size - 10, 10).ok());
}

TEST_P(TransportTest, FullQueueIsResourceExhaustedUntilACompletion) {
  const std::vector<std::byte> source = RandomBytes(10, 13);
  for (uint64_t i = 0; i < TransportPair::kMaxOpenPosts; ++i) {
    ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(i, 0, source)).ok());
  }
  EXPECT_EQ(pair_->sender().Post(connection_, MakePost(1000, 0, source)).code(),
            absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(Expect(0, 0, 10).ok());
  EXPECT_TRUE(NextSent()->status.ok());
  EXPECT_TRUE(NextReceived()->status.ok());
  EXPECT_TRUE(pair_->sender().Post(connection_, MakePost(1000, 0, source)).ok());
}

TEST_P(TransportTest, DeadPeerCompletesEveryPostAndANewConnectionWorks) {
  const std::vector<std::byte> source = RandomBytes(3 << 20, 14);
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(i, 0, source)).ok());
  }
  window_.reset();
  pair_->KillReceiver();
  for (int i = 0; i < 5; ++i) {
    const auto sent = NextSent();
    ASSERT_TRUE(sent.has_value());
    EXPECT_FALSE(sent->status.ok());
  }
  pair_->StartReceiver();
  window_ = *pair_->receiver().Register({std::span(memory_)}, kernels::HostLanding());
  const auto again = pair_->sender().Connect(pair_->receiver().connection_data());
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_TRUE(Expect(9, 0, 3 << 20).ok());
  ASSERT_TRUE(pair_->sender().Post(*again, MakePost(9, 0, source)).ok());
  const auto sent = NextSent();
  ASSERT_TRUE(sent.has_value());
  EXPECT_TRUE(sent->status.ok()) << sent->status;
}

TEST_P(TransportTest, PostToADeadPeerIsUnavailable) {
  const std::vector<std::byte> source = RandomBytes(10, 15);
  window_.reset();
  pair_->KillReceiver();
  const PostParams post{.window = std::string(24, 'x'),
                        .runs = {{.offset = 0, .source = source}},
                        .transfer_id = 1,
                        .tag = 1};
  absl::Status status = pair_->sender().Post(connection_, post);
  if (status.ok()) {
    status = NextSent()->status;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_P(TransportTest, ReleaseCancelsOpenPostsAndEndsPolls) {
  const std::vector<std::byte> source = RandomBytes(10, 16);
  ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(1, 0, source)).ok());
  ASSERT_TRUE(Expect(2, 0, 10).ok());
  pair_->sender().Release();
  EXPECT_EQ(NextSent()->status.code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(pair_->sender().Post(connection_, MakePost(3, 0, source)).ok());
  pair_->receiver().Release();
  EXPECT_EQ(NextReceived()->status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(pair_->receiver().Poll(absl::InfiniteFuture()).empty());
}

TEST_P(TransportTest, NothingIsWrittenAfterWithdrawReturns) {
  const std::vector<std::byte> source = RandomBytes(kWindowBytes, 17);
  for (uint64_t round = 0; round < 20; ++round) {
    window_ = *pair_->receiver().Register({std::span(memory_)}, kernels::HostLanding());
    ASSERT_TRUE(Expect(round, 0, kWindowBytes).ok());
    ASSERT_TRUE(pair_->sender().Post(connection_, MakePost(round, 0, source)).ok());
    absl::SleepFor(absl::Microseconds(100 * round));
    window_.reset();  // waits for a copy in progress
    std::fill(memory_.begin(), memory_.end(), std::byte{0xee});
    ASSERT_TRUE(NextSent().has_value());
    ASSERT_TRUE(MemoryUntouched()) << "round " << round;
  }
}

// UCX where the build has it.
std::vector<const char*> BackEnds() {
  std::vector<const char*> kinds = {"loopback", "grpc", "ipc", "ipc_shared", "nccl"};
  if (UcxTransport::available()) {
    kinds.insert(kinds.end(), {"ucx", "ucx_puts"});
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(BackEnds,
                         TransportTest,
                         testing::ValuesIn(BackEnds()),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace baton::transport
