#include "common/transport/inbound_window.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "common/base/xxh3.h"
#include "common/transport/completion_queue.h"
#include "common/transport/transport.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/shared_blocks.h"
#include "kernels/core/word_sum.h"

namespace baton::transport {
namespace {

class InboundWindowTest : public testing::Test {
 protected:
  absl::Status Announce(uint64_t transfer_id, int64_t offset, int64_t size_bytes) {
    return window_.Announce(
        {.runs = {{offset, size_bytes}}, .transfer_id = transfer_id, .tag = transfer_id});
  }
  // What Claim answers, or nothing while it waits.
  std::shared_ptr<std::optional<absl::Status>> Claim(uint64_t transfer_id, const void* owner) {
    auto verdict = std::make_shared<std::optional<absl::Status>>();
    window_.Claim(
        transfer_id, owner, [verdict](absl::Status status) { *verdict = std::move(status); });
    return verdict;
  }
  std::vector<Completion> Completions() { return completions_->Poll(absl::Now()); }

  std::vector<std::byte> memory_ = std::vector<std::byte>(100);
  std::vector<std::byte> bytes_ = std::vector<std::byte>(100, std::byte{7});
  std::shared_ptr<CompletionQueue> completions_ = std::make_shared<CompletionQueue>();
  InboundWindow window_{{std::span(memory_).first(10), std::span(memory_).subspan(10)},
                        kernels::HostLanding(),
                        completions_};
  const int first_ = 0;
  const int second_ = 0;
};

TEST_F(InboundWindowTest, ATransferBelongsToOneStream) {
  ASSERT_TRUE(Announce(1, 0, 20).ok());
  EXPECT_TRUE(Claim(1, &first_)->value().ok());
  EXPECT_EQ(Claim(1, &second_)->value().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(window_.Write(1, &second_, 0, std::span(bytes_).first(20)).code(),
            absl::StatusCode::kFailedPrecondition);
  window_.Abandon(1, &second_, absl::UnavailableError("gone"));  // not its own: nothing happens
  EXPECT_TRUE(window_.Write(1, &first_, 0, std::span(bytes_).first(20)).ok());
  EXPECT_TRUE(window_.Finish(1, &first_, 20).ok());
  const auto completions = Completions();
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_TRUE(completions[0].status.ok());
}

TEST_F(InboundWindowTest, OnlyOneStreamMayWaitForATransfer) {
  const auto waiting = Claim(1, &first_);
  EXPECT_FALSE(waiting->has_value());
  EXPECT_EQ(Claim(1, &second_)->value().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(Announce(1, 0, 20).ok());
  EXPECT_TRUE(waiting->value().ok());
}

TEST_F(InboundWindowTest, AbandonedWaiterIsForgotten) {
  const auto waiting = Claim(1, &first_);
  window_.Abandon(1, &first_, absl::UnavailableError("gone"));
  ASSERT_TRUE(Announce(1, 0, 20).ok());
  EXPECT_FALSE(waiting->has_value());
  EXPECT_TRUE(Claim(1, &second_)->value().ok());
}

TEST_F(InboundWindowTest, AbandonedTransferCompletesWithTheReasonAndStaysClosed) {
  ASSERT_TRUE(Announce(1, 0, 20).ok());
  EXPECT_TRUE(Claim(1, &first_)->value().ok());
  window_.Abandon(1, &first_, absl::UnavailableError("gone"));
  const auto completions = Completions();
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Claim(1, &second_)->value().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(InboundWindowTest, WaitersAreBounded) {
  std::vector<int> owners(InboundWindow::kMaxWaiters + 1);
  for (size_t i = 0; i < InboundWindow::kMaxWaiters; ++i) {
    EXPECT_FALSE(Claim(i, &owners[i])->has_value());
  }
  EXPECT_EQ(Claim(InboundWindow::kMaxWaiters, &owners.back())->value().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(InboundWindowTest, WithdrawRefusesWaitersAndIsFinal) {
  const auto waiting = Claim(1, &first_);
  window_.Withdraw();
  EXPECT_EQ(waiting->value().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Announce(2, 0, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Claim(3, &first_)->value().code(), absl::StatusCode::kFailedPrecondition);
}

// Memory that the host can't read, in which bytes are when they have been waited for.
class FarMemory final : public kernels::LandingMemory {
 public:
  bool is_host() const override { return false; }
  absl::Status Write(std::byte* target, std::span<const std::byte> source) override {
    under_way.emplace_back(target, std::vector<std::byte>(source.begin(), source.end()));
    return writes;
  }
  absl::StatusOr<std::unique_ptr<kernels::SharedMapping>> Import(int /*fd*/,
                                                                 size_t /*size*/) override {
    return absl::UnimplementedError("not here");
  }
  absl::Status Pull(std::byte* target, std::span<const std::byte> source) override {
    pulled.emplace_back(target, source);
    return writes;
  }
  absl::Status Wait() override {
    for (const auto& [target, source] : std::exchange(pulled, {})) {
      std::copy(source.begin(), source.end(), target);
    }
    for (const auto& [target, bytes] : std::exchange(under_way, {})) {
      std::copy(bytes.begin(), bytes.end(), target);
    }
    return waits;
  }
  absl::Status ReadAll(std::span<const kernels::LandedRead> /*reads*/) override {
    return absl::UnimplementedError("not here");
  }

  absl::StatusOr<uint64_t> WordSum(std::span<const std::span<const std::byte>> pieces) override {
    const absl::Status status = Wait();
    return status.ok() ? kernels::AddWords(pieces) : status;
  }

  std::vector<std::pair<std::byte*, std::vector<std::byte>>> under_way;
  std::vector<std::pair<std::byte*, std::span<const std::byte>>> pulled;
  absl::Status writes;
  absl::Status waits;
};

class FarWindowTest : public InboundWindowTest {
 protected:
  // Writes the first half of a transfer of 20 bytes.
  absl::Status WriteHalf() {
    EXPECT_TRUE(far_window_.Announce({.runs = {{5, 20}}, .transfer_id = 1, .tag = 1}).ok());
    far_window_.Claim(1, &first_, [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
    return far_window_.Write(1, &first_, 5, std::span(bytes_).first(10));
  }
  absl::Status Ended() {
    const auto completions = Completions();
    EXPECT_EQ(completions.size(), 1U);
    return completions.empty() ? absl::UnknownError("nothing") : completions[0].status;
  }

  FarMemory far_;
  InboundWindow far_window_{
      {std::span(memory_).first(10), std::span(memory_).subspan(10)}, far_, completions_};
};

TEST_F(FarWindowTest, ATransferIsCompleteWhenItsBytesAreThere) {
  ASSERT_TRUE(WriteHalf().ok());
  EXPECT_FALSE(far_.under_way.empty());
  ASSERT_TRUE(far_window_.Write(1, &first_, 15, std::span(bytes_).first(10)).ok());
  ASSERT_TRUE(far_window_.Finish(1, &first_, 20).ok());
  EXPECT_TRUE(far_.under_way.empty());
  EXPECT_EQ(memory_[24], std::byte{7});
  const auto completions = Completions();
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_TRUE(completions[0].status.ok());
  EXPECT_EQ(completions[0].checksum, Xxh3(std::span(bytes_).first(20)));
}

TEST_F(FarWindowTest, BytesOfADeviceAreSummedUpWhereTheyLand) {
  ASSERT_TRUE(far_window_
                  .Announce({.runs = {{0, 8}, {24, 16}},
                             .transfer_id = 1,
                             .tag = 1,
                             .checksum = Checksum::kWordSum})
                  .ok());
  far_window_.Claim(1, &first_, [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  ASSERT_TRUE(far_window_.Pull(1, &first_, 0, std::span(bytes_).first(8)).ok());
  ASSERT_TRUE(far_window_.Pull(1, &first_, 24, std::span(bytes_).first(8)).ok());
  // Bytes of the host may be among them.
  ASSERT_TRUE(far_window_.Write(1, &first_, 32, std::span(bytes_).first(8)).ok());
  bytes_[0] =
      std::byte{8};  // what is read is read before the transfer ends, not when it was told of
  ASSERT_TRUE(far_window_.Finish(1, &first_, 24).ok());
  EXPECT_TRUE(far_.pulled.empty());
  const auto completions = Completions();
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_TRUE(completions[0].status.ok()) << completions[0].status;
  EXPECT_EQ(memory_[24], std::byte{8});
  const std::vector<std::span<const std::byte>> pieces = {std::span(memory_).first(8),
                                                          std::span(memory_).subspan(24, 16)};
  EXPECT_EQ(completions[0].checksum, *kernels::AddWords(pieces));
}

TEST_F(FarWindowTest, BytesOfADeviceWithAChecksumOfTheHostEndTheTransfer) {
  ASSERT_TRUE(far_window_.Announce({.runs = {{0, 8}}, .transfer_id = 1, .tag = 1}).ok());
  far_window_.Claim(1, &first_, [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  EXPECT_EQ(far_window_.Pull(1, &first_, 0, std::span(bytes_).first(8)).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(far_.pulled.empty());
  EXPECT_EQ(Ended().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(FarWindowTest, NothingIsReadOfADeviceOnceATransferWasGivenUp) {
  ASSERT_TRUE(
      far_window_
          .Announce({.runs = {{0, 16}}, .transfer_id = 1, .tag = 1, .checksum = Checksum::kWordSum})
          .ok());
  far_window_.Claim(1, &first_, [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  ASSERT_TRUE(far_window_.Pull(1, &first_, 0, std::span(bytes_).first(8)).ok());
  far_window_.CancelTransfers();
  EXPECT_TRUE(far_.pulled.empty());
  EXPECT_EQ(Ended().code(), absl::StatusCode::kCancelled);
}

TEST_F(FarWindowTest, NothingIsUnderWayOnceATransferWasGivenUp) {
  ASSERT_TRUE(WriteHalf().ok());
  far_window_.CancelTransfers();
  EXPECT_TRUE(far_.under_way.empty());
  EXPECT_EQ(Ended().code(), absl::StatusCode::kCancelled);
}

TEST_F(FarWindowTest, NothingIsUnderWayOnceTheWindowIsWithdrawn) {
  ASSERT_TRUE(WriteHalf().ok());
  far_window_.Withdraw();
  EXPECT_TRUE(far_.under_way.empty());
}

TEST_F(FarWindowTest, MemoryThatCanNotBeWrittenEndsTheTransfer) {
  far_.writes = absl::InternalError("no writing");
  EXPECT_EQ(WriteHalf().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(far_.under_way.empty()) << "what was begun before the error";
  EXPECT_EQ(Ended().code(), absl::StatusCode::kInternal);
}

TEST_F(FarWindowTest, BytesThatDoNotGetThereEndTheTransfer) {
  ASSERT_TRUE(WriteHalf().ok());
  ASSERT_TRUE(far_window_.Write(1, &first_, 15, std::span(bytes_).first(10)).ok());
  far_.waits = absl::InternalError("lost on the way");
  EXPECT_EQ(far_window_.Finish(1, &first_, 20).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Ended().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace baton::transport
