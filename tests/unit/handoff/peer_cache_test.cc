#include "common/handoff/send/peer_cache.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/handoff/send/handshake_client.h"
#include "common/kv/manifest/head_range.h"
#include "common/kv/manifest/layout.h"
#include "common/kv/manifest/segment_header.h"
#include "common/transport/transport.h"
#include "kernels/core/landing_memory.h"

namespace baton::handoff {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FakeConnection final : public transport::Connection {
 public:
  explicit FakeConnection(std::string carrier) : carrier_(std::move(carrier)) {}
  std::string_view carrier() const override { return carrier_; }
  bool lost() const override { return lost_; }
  void Lose() { lost_ = true; }

 private:
  const std::string carrier_;
  bool lost_ = false;
};

worker::v1::TransportEndpoint Endpoint(const std::string& transport, const std::string& data) {
  worker::v1::TransportEndpoint endpoint;
  endpoint.set_transport(transport);
  endpoint.set_connection_data(data);
  return endpoint;
}

// Connects, or does not; carries nothing.
class FakeTransport final : public transport::Transport {
 public:
  explicit FakeTransport(std::string name) : name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  std::string connection_data() const override { return name_ + "-here"; }
  absl::StatusOr<std::unique_ptr<transport::Window>> Register(
      std::vector<std::span<std::byte>> /*extents*/, kernels::LandingMemory& /*memory*/) override {
    return absl::UnimplementedError("not here");
  }
  absl::StatusOr<std::shared_ptr<transport::Connection>> Connect(
      std::string_view connection_data) override {
    absl::MutexLock lock(&mutex_);
    connects.emplace_back(connection_data);
    if (!connectable) {
      return absl::UnavailableError("no way over " + name_);
    }
    connection = std::make_shared<FakeConnection>(name_);
    return connection;
  }
  absl::Status Post(const std::shared_ptr<transport::Connection>& /*connection*/,
                    transport::PostParams /*params*/) override {
    return absl::UnimplementedError("not here");
  }
  void CancelPost(uint64_t /*tag*/) override {}
  absl::Status Expect(const transport::ExpectParams& /*params*/) override {
    return absl::UnimplementedError("not here");
  }
  std::vector<transport::Completion> Poll(absl::Time /*deadline*/) override { return {}; }
  void Release() override {}

  // To be read while nobody connects.
  bool connectable = true;
  std::vector<std::string> connects;
  std::shared_ptr<FakeConnection> connection;  // the last one

 private:
  const std::string name_;
  absl::Mutex mutex_;
};

class FakeHandshake final : public HandshakeClient {
 public:
  absl::StatusOr<worker::v1::HandshakeResponse> Handshake(
      const std::string& /*control_address*/,
      const worker::v1::HandshakeRequest& request) override {
    {
      absl::MutexLock lock(&mutex_);
      most_ = std::max(most_, ++running_);
      mutex_.Await(absl::Condition(+[](bool* held) { return !*held; }, &held_));
      --running_;
    }
    worker::v1::HandshakeResponse response;
    *response.mutable_layout() = request.layout();
    response.set_segment_header_version(kv::SegmentHeader::kVersion);
    response.set_kv_ranks(kv::kWorkerRanks);
    *response.add_endpoints() = Endpoint("near", "n");
    return response;
  }
  void Hold(bool held) {
    absl::MutexLock lock(&mutex_);
    held_ = held;
  }
  // At a time.
  int most() const {
    absl::MutexLock lock(&mutex_);
    return most_;
  }

 private:
  mutable absl::Mutex mutex_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  int most_ ABSL_GUARDED_BY(mutex_) = 0;
};

class PeerCacheTest : public testing::Test {
 protected:
  absl::StatusOr<std::shared_ptr<const Peer>> Get(
      const std::vector<worker::v1::TransportEndpoint>& endpoints) {
    absl::StatusOr<std::shared_ptr<const Peer>> got = absl::UnknownError("no answer");
    absl::Notification answered;
    cache_->Get("decode:1", endpoints, [&](absl::StatusOr<std::shared_ptr<const Peer>> peer) {
      got = std::move(peer);
      answered.Notify();
    });
    answered.WaitForNotification();
    return got;
  }

  // Asks for so many workers that nobody is connected to, and counts answers by their code.
  void GetMany(int workers) {
    for (int i = 0; i < workers; ++i) {
      cache_->Get("decode:" + std::to_string(i), {}, [this](const auto& peer) {
        absl::MutexLock lock(&mutex_);
        ++answers_[peer.status().code()];
      });
    }
  }
  int answers(absl::StatusCode code) {
    absl::MutexLock lock(&mutex_);
    return answers_[code];
  }

  absl::Mutex mutex_;
  std::map<absl::StatusCode, int> answers_ ABSL_GUARDED_BY(mutex_);
  FakeTransport near_{"near"};
  FakeTransport far_{"far"};
  FakeHandshake handshake_;
  std::optional<PeerCache> cache_{
      std::in_place,
      std::vector<transport::Transport*>{&near_, &far_},
      &handshake_,
      kv::DenseLayout(1, 2, {.page_tokens = 4, .kv_heads = 2, .head_dim = 8})};
};

TEST_F(PeerCacheTest, AFewAreConnectedToAtATimeTheOthersInTurn) {
  handshake_.Hold(true);
  const int workers = PeerCache::kMaxConnecting + 100;
  GetMany(workers);
  handshake_.Hold(false);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (answers(absl::StatusCode::kOk) < workers && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(answers(absl::StatusCode::kOk), workers);
  EXPECT_LE(handshake_.most(), PeerCache::kMaxConnecting);
}

TEST_F(PeerCacheTest, MoreThanMayWaitAreRefusedAndThoseThatWaitAreGivenUpAtTheEnd) {
  handshake_.Hold(true);
  const int waiting = static_cast<int>(PeerCache::kMaxWaiting);
  GetMany(PeerCache::kMaxConnecting + waiting + 7);
  EXPECT_EQ(answers(absl::StatusCode::kUnavailable), 7);
  std::thread ending([this] { cache_.reset(); });
  absl::SleepFor(absl::Milliseconds(20));  // for the end to begin, or some more connect
  handshake_.Hold(false);
  ending.join();
  EXPECT_EQ(answers(absl::StatusCode::kOk) + answers(absl::StatusCode::kCancelled),
            PeerCache::kMaxConnecting + waiting);
  EXPECT_GE(answers(absl::StatusCode::kOk), PeerCache::kMaxConnecting);
}

TEST_F(PeerCacheTest, TheFirstTransportThatIsOfferedAndConnectsIsTaken) {
  const auto peer = Get({Endpoint("far", "f"), Endpoint("near", "n")});
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ((*peer)->transport, &near_);
  EXPECT_THAT(near_.connects, ElementsAre("n"));
  EXPECT_TRUE(far_.connects.empty());
}

TEST_F(PeerCacheTest, TheNextTransportIsTakenWhereTheFirstCanNotConnect) {
  near_.connectable = false;
  const std::vector endpoints = {Endpoint("near", "n"), Endpoint("far", "f")};
  const auto peer = Get(endpoints);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ((*peer)->transport, &far_);
  EXPECT_EQ((*peer)->connection_data, "f");
  // It stays with that one.
  near_.connectable = true;
  EXPECT_EQ((*Get(endpoints))->transport, &far_);
  EXPECT_EQ(near_.connects.size(), 1U);
}

TEST_F(PeerCacheTest, AWorkerThatRestartedIsConnectedToAnew) {
  ASSERT_TRUE(Get({Endpoint("near", "n"), Endpoint("far", "f")}).ok());
  ASSERT_TRUE(Get({Endpoint("near", "other"), Endpoint("far", "f")}).ok());
  EXPECT_THAT(near_.connects, ElementsAre("n", "other"));
}

TEST_F(PeerCacheTest, AConnectionThatWasLostMeanwhileIsMadeAnew) {
  const std::vector endpoints = {Endpoint("near", "n")};
  ASSERT_TRUE(Get(endpoints).ok());
  ASSERT_TRUE(Get(endpoints).ok());
  EXPECT_THAT(near_.connects, ElementsAre("n"));
  near_.connection->Lose();
  const auto peer = Get(endpoints);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_FALSE((*peer)->connection->lost());
  EXPECT_THAT(near_.connects, ElementsAre("n", "n"));
}

TEST_F(PeerCacheTest, WithoutAnyConnectionTheLastErrorIsTold) {
  near_.connectable = far_.connectable = false;
  const absl::Status status = Get({Endpoint("near", "n"), Endpoint("far", "f")}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("far"));
}

TEST_F(PeerCacheTest, AWorkerThatOffersNothingKnownFailsThePrecondition) {
  const absl::Status status = Get({Endpoint("elsewhere", "e")}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("decode:1 offers no transport"));
}

}  // namespace
}  // namespace baton::handoff
