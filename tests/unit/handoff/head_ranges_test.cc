// Transfers whose layers come in ranges of KV heads, as the ranks of a tensor-parallel prefill
// worker would send them: any partition lands, and all ranges share one fate.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"

#include "common/base/xxh3.h"
#include "common/engine/request.h"
#include "common/handoff/commit_digest.h"
#include "common/handoff/land/landing.h"
#include "common/handoff/land/landing_session.h"
#include "common/handoff/send/commit_message.h"
#include "common/handoff/send/handshake_client.h"
#include "common/handoff/send/peer_cache.h"
#include "common/kv/manifest/head_range.h"
#include "common/kv/manifest/layout.h"
#include "common/kv/manifest/segment_header.h"
#include "common/transport/transport.h"
#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"
#include "tests/unit/handoff/fake_engine.h"
#include "tests/unit/handoff/handoff_fixture.h"
#include "tests/unit/transport/transport_pair.h"

namespace baton::handoff {
namespace {

using kernels::DensePageLayout;
using kv::HeadRange;

constexpr uint64_t kReservation = 77;
constexpr uint64_t kEpoch = 0xabcdef;
constexpr int32_t kLayers = 2;
constexpr int64_t kPromptTokens = 9;
constexpr std::byte kUntouched{0xee};

// One decode worker and one reservation, filled by a sender made of messages and posts.
class Ranks {
 public:
  Ranks(const std::string& kind, const DensePageLayout& page)
      : page_(page),
        pair_(transport::TransportPair::Make(kind)),
        layout_(kv::DenseLayout(1, kLayers, page)),
        pages_(page.pages_for(kPromptTokens)) {
    if (page.has_scales()) {
      layout_.set_format("fp8");
      layout_.set_policy("fp8");
    }
    landing_ = std::make_unique<Landing>(
        std::vector<transport::Transport*>{&pair_->receiver()}, layout_, LandingOptions{});
    landing_->set_engine(&engine_);
    source_.resize(static_cast<size_t>(kLayers * pages_) * page.page_bytes());
    target_.assign(source_.size(), kUntouched);
    std::mt19937 random(7);
    for (std::byte& byte : source_) {
      byte = static_cast<std::byte>(random());
    }
    Reserve();
  }
  ~Ranks() { landing_.reset(); }

  // Begins an attempt; what was announced and posted before is of the one before.
  void Begin(uint32_t attempt) {
    attempt_ = attempt;
    checksums_.clear();
    payload_bytes_ = 0;
    verdict_ = std::make_shared<Verdict>();
    session_ = landing_->StartSession(verdict_);
    worker::v1::TransferRequest message;
    kv::v1::KvManifest& manifest = *message.mutable_manifest();
    manifest.set_reservation_id(kReservation);
    manifest.set_epoch(kEpoch);
    manifest.set_attempt(attempt);
    *manifest.mutable_layout() = layout_;
    manifest.set_prompt_tokens(kPromptTokens);
    manifest.set_segment_header_version(kv::SegmentHeader::kVersion);
    manifest.set_transport(std::string(pair_->sender().name()));
    session_->OnMessage(message);
  }

  // The header of the heads of a layer, in all pages; returns the segment's index.
  uint32_t Announce(int32_t layer, const HeadRange& heads) {
    const std::vector<transport::SendRun> runs = Runs(layer, heads, source_);
    Xxh3Stream checksum;
    kv::SegmentHeader header;
    for (const transport::SendRun& run : runs) {
      checksum.Update(run.source);
      header.payload_bytes += run.source.size();
    }
    header.reservation_id = kReservation;
    header.epoch = kEpoch;
    header.attempt = attempt_;
    header.segment_index = static_cast<uint32_t>(checksums_.size());
    header.layer_begin = static_cast<uint16_t>(layer);
    header.layer_count = 1;
    header.head_begin = static_cast<uint16_t>(heads.begin);
    header.head_count = static_cast<uint16_t>(heads.end - heads.begin);
    header.head_total = static_cast<uint16_t>(page_.kv_heads);
    header.page_count = static_cast<uint32_t>(pages_);
    header.format = *kv::WireFormatNamed(layout_.format());
    header.checksum = checksum.value();
    checksums_.push_back(header.checksum);
    payload_bytes_ += header.payload_bytes;
    const auto bytes = kv::EncodeSegmentHeader(header);
    worker::v1::TransferRequest message;
    message.set_segment_header(bytes.data(), bytes.size());
    session_->OnMessage(message);
    return header.segment_index;
  }

  // The bytes of an announced segment, from `source`; the answer of the transport.
  absl::Status Post(uint32_t segment,
                    int32_t layer,
                    const HeadRange& heads,
                    std::span<const std::byte> source) {
    transport::PostParams params;
    params.window = endpoint_.window();
    params.runs = Runs(layer, heads, source);
    params.transfer_id = kv::TransferId(attempt_, segment);
    params.tag = ++last_tag_;
    auto connection = pair_->sender().Connect(endpoint_.connection_data());
    if (!connection.ok()) {
      return connection.status();
    }
    absl::Status status = pair_->sender().Post(*connection, std::move(params));
    return status.ok() ? Completed(last_tag_) : status;
  }

  void Ship(int32_t layer, const HeadRange& heads) {
    const absl::Status status = Post(Announce(layer, heads), layer, heads, source_);
    EXPECT_TRUE(status.ok()) << status;
  }
  void ShipAll(const std::vector<HeadRange>& ranges) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (const HeadRange& heads : ranges) {
        Ship(layer, heads);
      }
    }
  }

  void Commit() {
    engine::CommitInfo info;
    info.first_tokens.resize(1);
    info.finished.resize(1);
    worker::v1::TransferRequest message;
    worker::v1::Commit& commit = *message.mutable_commit();
    FillCommit(info, commit);
    commit.set_segments(static_cast<uint32_t>(checksums_.size()));
    commit.set_payload_bytes(payload_bytes_);
    commit.set_digest(CommitDigest(checksums_, commit));
    session_->OnMessage(message);
  }

  // How landing ended the attempt.
  absl::Status AwaitVerdict() {
    if (!verdict_->ended.WaitForNotificationWithTimeout(kLong)) {
      return absl::InternalError("landing gave no verdict");
    }
    return verdict_->status;
  }
  bool HasVerdict() const { return verdict_->ended.HasBeenNotified(); }
  bool Published() const { return !engine_.committed().empty(); }
  bool Landed() const { return target_ == source_; }
  // Whether no byte of these heads of the layer was written.
  bool Untouched(int32_t layer, const HeadRange& heads) {
    return std::ranges::all_of(Runs(layer, heads, target_), [](const transport::SendRun& run) {
      return std::ranges::all_of(run.source, [](std::byte byte) { return byte == kUntouched; });
    });
  }
  std::vector<std::byte> DamagedSource(int32_t layer, const HeadRange& heads) const {
    std::vector<std::byte> damaged = source_;
    damaged[static_cast<size_t>(Runs(layer, heads, damaged).back().offset)] ^= std::byte{1};
    return damaged;
  }
  std::span<const std::byte> source() const { return source_; }
  Landing& landing() { return *landing_; }
  const kv::v1::KvLayout& layout() const { return layout_; }

 private:
  struct Verdict : LandingResponder {
    void Send(worker::v1::TransferResponse /*message*/) override {}
    void Finish(absl::Status ended_with) override {
      status = std::move(ended_with);
      ended.Notify();  // a second end would abort
    }
    absl::Status status;
    absl::Notification ended;
  };

  void Reserve() {
    engine::ReservationGrant grant;
    grant.reservation_id = kReservation;
    grant.epoch = kEpoch;
    grant.prompt_tokens = kPromptTokens;
    grant.pages_per_layer = pages_;
    grant.page_bytes = static_cast<int64_t>(page_.page_bytes());
    for (size_t at = 0; at < target_.size(); at += page_.page_bytes()) {
      grant.memory.push_back(std::span(target_).subspan(at, page_.page_bytes()));
    }
    engine_.Grant(kReservation, kEpoch);
    const auto endpoints = landing_->Open(grant, layout_);
    ASSERT_TRUE(endpoints.ok()) << endpoints.status();
    endpoint_ = endpoints->front();
  }

  // The bytes of these heads in all pages of a layer of `memory`, by the page's own offsets.
  std::vector<transport::SendRun> Runs(int32_t layer,
                                       const HeadRange& heads,
                                       std::span<const std::byte> memory) const {
    std::vector<transport::SendRun> runs;
    const auto add = [&](size_t begin, size_t end) {
      runs.push_back(
          {.offset = static_cast<int64_t>(begin), .source = memory.subspan(begin, end - begin)});
    };
    for (int32_t page = 0; page < pages_; ++page) {
      const size_t at = static_cast<size_t>(layer * pages_ + page) * page_.page_bytes();
      add(at + page_.key_offset(heads.begin, 0), at + page_.key_offset(heads.end, 0));
      add(at + page_.value_offset(heads.begin, 0), at + page_.value_offset(heads.end, 0));
      if (page_.has_scales()) {
        add(at + page_.key_scale_offset(heads.begin, 0), at + page_.key_scale_offset(heads.end, 0));
        add(at + page_.value_scale_offset(heads.begin, 0),
            at + page_.value_scale_offset(heads.end, 0));
      }
    }
    return runs;
  }

  absl::Status Completed(uint64_t tag) {
    const absl::Time deadline = absl::Now() + kLong;
    while (absl::Now() < deadline) {
      for (const transport::Completion& completion : pair_->sender().Poll(deadline)) {
        if (completion.tag == tag) {
          return completion.status;
        }
      }
    }
    return absl::DeadlineExceededError("a post did not complete");
  }

  const DensePageLayout page_;
  const std::unique_ptr<transport::TransportPair> pair_;
  kv::v1::KvLayout layout_;
  const int32_t pages_;
  FakeEngine engine_;
  std::unique_ptr<Landing> landing_;
  worker::v1::TransportEndpoint endpoint_;
  std::vector<std::byte> source_;
  std::vector<std::byte> target_;
  uint32_t attempt_ = 0;
  uint64_t last_tag_ = 0;
  std::vector<uint64_t> checksums_;
  uint64_t payload_bytes_ = 0;
  std::shared_ptr<Verdict> verdict_;
  std::shared_ptr<LandingSession> session_;
};

DensePageLayout Page(int32_t kv_heads, kernels::DType dtype = kernels::DType::kBF16) {
  return {.page_tokens = 4, .kv_heads = kv_heads, .head_dim = 8, .dtype = dtype};
}

class HeadRangesTest : public testing::TestWithParam<const char*> {
 protected:
  Ranks ranks_{GetParam(), Page(4)};
  const std::vector<HeadRange> halves_ = *kv::HeadsOfRanks(4, 2);
};

INSTANTIATE_TEST_SUITE_P(BackEnds,
                         HeadRangesTest,
                         testing::Values("loopback", "grpc", "ipc"),
                         [](const auto& instance) { return std::string(instance.param); });

// Catalogue T17: a transfer without one rank's part.
TEST_P(HeadRangesTest, CommitWithoutTheHeadsOfOneRankIsRefused) {
  ranks_.Begin(1);
  ranks_.Ship(0, halves_[0]);
  ranks_.Ship(0, halves_[1]);
  ranks_.Ship(1, halves_[0]);
  ranks_.Commit();
  EXPECT_EQ(ranks_.AwaitVerdict().code(), absl::StatusCode::kInvalidArgument)
      << ranks_.AwaitVerdict();
  EXPECT_FALSE(ranks_.Published());
  ranks_.landing().OnReservationReleased(kReservation);
  EXPECT_EQ(ranks_.landing().open_reservations(), 0);
}

// Catalogue T17: one part is announced and does not come; the reservation's lease ends it.
TEST_P(HeadRangesTest, HeadsThatNeverArriveAreNeverReadyAndLeaveNothingBehind) {
  ranks_.Begin(1);
  ranks_.ShipAll({halves_[0]});
  ranks_.Ship(0, halves_[1]);
  const uint32_t missing = ranks_.Announce(1, halves_[1]);
  ranks_.Commit();
  EXPECT_FALSE(ranks_.HasVerdict());
  EXPECT_FALSE(ranks_.Published());
  ranks_.landing().OnReservationReleased(kReservation);
  EXPECT_EQ(ranks_.AwaitVerdict().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ranks_.landing().open_reservations(), 0);
  EXPECT_FALSE(ranks_.Post(missing, 1, halves_[1], ranks_.source()).ok())
      << "a late part was taken";
  EXPECT_TRUE(ranks_.Untouched(1, halves_[1]));
  EXPECT_FALSE(ranks_.Published());
}

// Catalogue T18: one verdict for all ranks, and the next attempt sends all parts anew.
TEST_P(HeadRangesTest, DamageToTheHeadsOfOneRankFailsAllAndAllAreSentAgain) {
  ranks_.Begin(1);
  ranks_.Ship(0, halves_[0]);
  ranks_.Ship(0, halves_[1]);
  const uint32_t damaged = ranks_.Announce(1, halves_[0]);
  ranks_.Announce(1, halves_[1]);
  (void)ranks_.Post(damaged, 1, halves_[0], ranks_.DamagedSource(1, halves_[0]));
  EXPECT_EQ(ranks_.AwaitVerdict().code(), absl::StatusCode::kDataLoss) << ranks_.AwaitVerdict();
  ranks_.Commit();
  EXPECT_FALSE(ranks_.Published());
  ranks_.Begin(2);
  EXPECT_FALSE(ranks_.HasVerdict());
  ranks_.ShipAll(halves_);
  ranks_.Commit();
  EXPECT_TRUE(ranks_.AwaitVerdict().ok()) << ranks_.AwaitVerdict();
  EXPECT_TRUE(ranks_.Published());
  EXPECT_TRUE(ranks_.Landed());
}

TEST_P(HeadRangesTest, HeadsInTwoSegmentsAreRefused) {
  ranks_.Begin(1);
  ranks_.Ship(0, {.begin = 0, .end = 3});
  ranks_.Announce(0, {.begin = 2, .end = 4});
  EXPECT_EQ(ranks_.AwaitVerdict().code(), absl::StatusCode::kInvalidArgument)
      << ranks_.AwaitVerdict();
}

// Where both sides' ranks have their borders.
std::vector<HeadRange> CutAtBoth(int32_t kv_heads, int32_t senders, int32_t receivers) {
  std::set<int32_t> borders = {0, kv_heads};
  for (const int32_t ranks : {senders, receivers}) {
    const auto held = kv::HeadsOfRanks(kv_heads, ranks);
    for (const HeadRange& heads : *held) {
      borders.insert({heads.begin, heads.end});
    }
  }
  std::vector<HeadRange> ranges;
  for (auto border = borders.begin(); std::next(border) != borders.end(); ++border) {
    ranges.push_back({.begin = *border, .end = *std::next(border)});
  }
  return ranges;
}

// Calls `check` with every number of KV heads, of sending and of receiving ranks.
template <typename Check>
void ForEveryPairOfLayouts(const Check& check) {
  for (int32_t kv_heads = 1; kv_heads <= 8; ++kv_heads) {
    for (const int32_t senders : {1, 2, 4, 8}) {
      for (const int32_t receivers : {1, 2, 4, 8}) {
        SCOPED_TRACE(absl::StrCat(kv_heads, " heads, ", senders, " to ", receivers, " ranks"));
        check(kv_heads, senders, receivers);
      }
    }
  }
}

bool Divides(int32_t kv_heads, int32_t ranks) { return kv::HeadsOfRanks(kv_heads, ranks).ok(); }

// Catalogue T23: what either side's ranks hold is a range of heads that a landing takes.
TEST(HeadLayoutsTest, EveryPairOfTensorParallelLayoutsLandsByRangesOfHeads) {
  std::mt19937 random(23);
  int landed = 0;
  ForEveryPairOfLayouts([&](int32_t kv_heads, int32_t senders, int32_t receivers) {
    if (!Divides(kv_heads, senders) || !Divides(kv_heads, receivers)) {
      return;
    }
    for (const kernels::DType dtype : {kernels::DType::kBF16, kernels::DType::kF8E4M3}) {
      Ranks ranks("loopback", Page(kv_heads, dtype));
      std::vector<HeadRange> ranges = CutAtBoth(kv_heads, senders, receivers);
      std::ranges::shuffle(ranges, random);
      ranks.Begin(1);
      ranks.ShipAll(ranges);
      ranks.Commit();
      EXPECT_TRUE(ranks.AwaitVerdict().ok()) << ranks.AwaitVerdict();
      EXPECT_TRUE(ranks.Landed());
      ++landed;
    }
  });
  EXPECT_GT(landed, 100);
}

// A decode worker that answers the handshake as one of `ranks` would.
class RankedPeer : public HandshakeClient {
 public:
  RankedPeer(const Landing& landing, int32_t ranks) : landing_(landing), ranks_(ranks) {}
  absl::StatusOr<worker::v1::HandshakeResponse> Handshake(
      const std::string& /*control_address*/,
      const worker::v1::HandshakeRequest& request) override {
    absl::StatusOr<worker::v1::HandshakeResponse> response = landing_.Handshake(request);
    if (response.ok()) {
      response->set_kv_ranks(static_cast<uint32_t>(ranks_));
    }
    return response;
  }

 private:
  const Landing& landing_;
  const int32_t ranks_;
};

// What a prefill worker's handshake with a decode worker of `receivers` ranks comes to.
absl::Status MeetDecode(Ranks& ranks, int32_t receivers) {
  RankedPeer peer(ranks.landing(), receivers);
  auto transport = transport::TransportPair::Make("loopback");
  PeerCache cache({&transport->sender()}, &peer, ranks.layout());
  absl::Notification met;
  absl::Status status;
  cache.Get("decode:1", {}, [&](const absl::StatusOr<std::shared_ptr<const Peer>>& made) {
    status = made.status();
    met.Notify();
  });
  met.WaitForNotification();
  return status;
}

// Catalogue T23: what can't be shipped is refused when workers meet, with no request in flight.
TEST(HeadLayoutsTest, LayoutsThatCannotBeShippedAreRefusedAtTheHandshakeByEitherSide) {
  std::map<int32_t, std::unique_ptr<Ranks>> decode_workers;  // by KV heads
  ForEveryPairOfLayouts([&](int32_t kv_heads, int32_t senders, int32_t receivers) {
    const bool possible =
        Divides(kv_heads, senders) && Divides(kv_heads, receivers) && receivers == 1;
    const absl::Status status = kv::CheckRanks(kv_heads, senders, receivers);
    EXPECT_EQ(status.code(),
              possible ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition);
    std::unique_ptr<Ranks>& decode = decode_workers[kv_heads];
    if (decode == nullptr) {
      decode = std::make_unique<Ranks>("loopback", Page(kv_heads));
    }
    worker::v1::HandshakeRequest request;
    *request.mutable_layout() = decode->layout();
    request.set_segment_header_version(kv::SegmentHeader::kVersion);
    request.add_transports("loopback");
    request.set_kv_ranks(static_cast<uint32_t>(senders));
    EXPECT_EQ(
        decode->landing().Handshake(request).status().code(),
        Divides(kv_heads, senders) ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(MeetDecode(*decode, receivers).code() == absl::StatusCode::kFailedPrecondition,
              receivers != 1);
  });
}

}  // namespace
}  // namespace baton::handoff
