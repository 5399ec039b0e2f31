// Peers of an nccl receiver that has room for two.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/security/credentials.h"

#include "common/transport/nccl/nccl_transport.h"
#include "common/transport/transport.h"
#include "kernels/core/device_link.h"
#include "kernels/core/memory.h"
#include "proto/baton/worker/v1/kv_link.pb.h"
#include "tests/kernels/device_double/guarded_memory.h"
#include "tests/kernels/device_double/local_links.h"
#include "tests/unit/transport/raw_link_sender.h"
#include "tests/unit/transport/transport_pair.h"

namespace baton::transport {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);
constexpr std::string_view kBytes = "01234567";

kernels::GuardedMemory& Device() { return kernels::GuardedMemory::Get(); }

class NcclRoomTest : public testing::Test {
 protected:
  // The receiver; a peer's place is free when it has sent nothing for so long.
  void Start(absl::Duration idle) {
    receiver_ = *NcclTransport::Make({.links = &receiver_links_,
                                      .memory = &Device().landing(),
                                      .max_inbound_peers = 2,
                                      .idle_before_close = idle});
    service_ = std::make_unique<LinkService>(receiver_.get());
    receiver_->set_address(server_.Start(*service_));
    memory_ = *Device().Allocate(kBytes.size());
    window_ = *receiver_->Register({{memory_.data(), kBytes.size()}}, Device().landing());
    for (auto& sender : senders_) {
      sender = *NcclTransport::Make({.links = &sender_links_,
                                     .credentials = grpc::InsecureChannelCredentials(),
                                     .sizes = {.slot_bytes = NcclPair::kSlotBytes},
                                     .connect_timeout = kLong});
    }
  }
  void TearDown() override {
    for (auto& sender : senders_) {
      sender.reset();
    }
    window_.reset();
    server_.Stop();
  }

  absl::StatusOr<std::shared_ptr<Connection>> Connect(int sender) {
    return senders_[static_cast<size_t>(sender)]->Connect(receiver_->connection_data());
  }
  absl::Status Post(int sender, const std::shared_ptr<Connection>& connection, uint64_t transfer) {
    return senders_[static_cast<size_t>(sender)]->Post(
        connection,
        {.window = window_->descriptor(),
         .runs = {{.offset = 0, .source = std::as_bytes(std::span(kBytes))}},
         .transfer_id = transfer,
         .tag = transfer});
  }
  absl::Status Expect(uint64_t transfer) {
    return receiver_->Expect({.window = window_.get(),
                              .runs = {{.offset = 0, .size_bytes = int64_t{kBytes.size()}}},
                              .transfer_id = transfer,
                              .tag = transfer,
                              .checksum = Checksum::kWordSum});
  }
  static absl::Status Next(Transport& transport) {
    const std::vector<Completion> completions = transport.Poll(absl::Now() + kLong);
    return completions.size() == 1 ? completions.front().status
                                   : absl::UnknownError("not one completion");
  }
  // A transfer from its announcement to its end.
  void Transfer(int sender, const std::shared_ptr<Connection>& connection, uint64_t transfer) {
    ASSERT_TRUE(Expect(transfer).ok());
    ASSERT_TRUE(Post(sender, connection, transfer).ok());
    EXPECT_TRUE(Next(*receiver_).ok());
    EXPECT_TRUE(Next(*senders_[static_cast<size_t>(sender)]).ok());
  }
  static bool GetsLost(const Connection& connection) {
    const absl::Time by = absl::Now() + kLong;
    while (!connection.lost() && absl::Now() < by) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    return connection.lost();
  }

  kernels::LocalLinks sender_links_{Device()};
  kernels::LocalLinks receiver_links_{Device()};
  std::unique_ptr<NcclTransport> receiver_;
  std::unique_ptr<LinkService> service_;
  LocalServer server_;
  kernels::Memory memory_;
  std::unique_ptr<Window> window_;
  std::array<std::unique_ptr<NcclTransport>, 3> senders_;
};

TEST_F(NcclRoomTest, AnotherPeerTakesThePlaceOfTheOneIdleLongest) {
  Start(/*idle=*/absl::ZeroDuration());
  const std::shared_ptr<Connection> first = *Connect(0);
  const std::shared_ptr<Connection> second = *Connect(1);
  Transfer(0, first, 1);
  const absl::StatusOr<std::shared_ptr<Connection>> third = Connect(2);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_TRUE(GetsLost(*second));
  EXPECT_EQ(Post(1, second, 2).code(), absl::StatusCode::kUnavailable);
  Transfer(0, first, 3);
  Transfer(2, *third, 4);
  // The one that had to go comes back.
  const absl::StatusOr<std::shared_ptr<Connection>> again = Connect(1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(GetsLost(*first));
  Transfer(1, *again, 5);
}

TEST_F(NcclRoomTest, APeerWithATransferUnderWayKeepsItsPlace) {
  Start(/*idle=*/absl::ZeroDuration());
  const std::string id = *sender_links_.NewId();
  const auto end = *sender_links_.Open(
      id, kernels::LinkEnd::kSender, {.slot_bytes = NcclPair::kSlotBytes, .max_blocks = 4});
  RawLinkSender first(receiver_->connection_data());
  first.Say(LinkHelloOf(id));
  ASSERT_TRUE(first.Await()->has_up());
  ASSERT_TRUE(Expect(1).ok());
  worker::v1::LinkMessage message;
  message.mutable_request()->set_post(1);
  message.mutable_request()->set_transfer_id(1);
  message.mutable_request()->set_total_bytes(kBytes.size());
  message.mutable_request()->set_window(window_->descriptor());
  first.Say(message);
  ASSERT_TRUE(first.Await()->has_ready());
  const std::shared_ptr<Connection> second = *Connect(1);
  const absl::StatusOr<std::shared_ptr<Connection>> third = Connect(2);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_TRUE(GetsLost(*second));
  message.mutable_release()->set_post(1);
  first.Say(message);
  EXPECT_EQ(Next(*receiver_).code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(first.Await()->has_verdict());
}

TEST_F(NcclRoomTest, APeerTooManyIsRefusedWhileOthersWereUsedLately) {
  Start(/*idle=*/absl::InfiniteDuration());
  const std::shared_ptr<Connection> first = *Connect(0);
  const std::shared_ptr<Connection> second = *Connect(1);
  EXPECT_EQ(Connect(2).status().code(), absl::StatusCode::kUnavailable);
  Transfer(0, first, 1);
  Transfer(1, second, 2);
}

}  // namespace
}  // namespace baton::transport
