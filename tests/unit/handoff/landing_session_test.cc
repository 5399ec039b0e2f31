// What landing refuses: every message of the control stream wrong in one way.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"

#include "common/engine/request.h"
#include "common/kv/manifest/segment_header.h"
#include "tests/unit/handoff/handoff_fixture.h"

namespace baton::handoff {
namespace {

using worker::v1::TransferRequest;

class LandingSessionTest : public HandoffFixture {
 protected:
  LandingSessionTest() : HandoffFixture("loopback") {}

  // Runs a whole hand-off with messages changed by `edit`.
  absl::Status Run(InProcessControl::Edit edit) {
    const auto sink = Open(MakeTransfer(Reserve()), std::move(edit));
    GiveAll(*sink);
    absl::Status status = Wait(Commit(*sink));
    EXPECT_TRUE(status.ok() || engine_.committed().empty());
    landing_->OnReservationReleased(kReservation);
    return status;
  }
  // What the engine is told of hidden states, which are given in this order: [begin, end) of pages.
  std::vector<int32_t> HiddenLanded(const std::vector<std::pair<int64_t, int64_t>>& order) {
    const int32_t shipped = kLayers - 1;
    hidden_pages_ = pages_per_layer();
    prompt_layout_.set_policy("hidden+dense");
    prompt_layout_.set_shipped_layers(static_cast<uint32_t>(shipped));
    prompt_layout_.set_hidden_page_bytes(page_.page_bytes());
    const auto sink = Open(MakeTransfer(Reserve()));
    Give(*sink, 0, shipped, 0, pages_per_layer());
    for (const auto& [begin, end] : order) {
      Give(*sink, shipped, 1, begin, end);
    }
    const absl::Status status = Wait(Commit(*sink));
    EXPECT_TRUE(status.ok()) << status;
    landing_->OnReservationReleased(kReservation);
    return engine_.hidden_landed();
  }
  void ExpectRefused(const char* what,
                     absl::StatusCode code,
                     const std::function<void(kv::SegmentHeader&)>& change) {
    const absl::Status status = Run(EditHeader(change));
    EXPECT_EQ(status.code(), code) << what << ": " << status;
  }
};

TEST_F(LandingSessionTest, UnchangedMessagesAreAccepted) {
  const absl::Status status = Run(EditHeader([](kv::SegmentHeader&) {}));
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(LandingSessionTest, EveryWrongHeaderFieldIsRefused) {
  using Header = kv::SegmentHeader;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  ExpectRefused("reservation", kPrecondition, [](Header& h) { h.reservation_id ^= 1; });
  ExpectRefused("epoch", kPrecondition, [](Header& h) { h.epoch ^= 1; });
  ExpectRefused("attempt", kPrecondition, [](Header& h) { ++h.attempt; });
  ExpectRefused("format", kPrecondition, [](Header& h) { h.format = kv::WireFormat::kDiffKv; });
  ExpectRefused("format version", kPrecondition, [](Header& h) { ++h.format_version; });
  ExpectRefused("index skipped", kInvalid, [](Header& h) { ++h.segment_index; });
  ExpectRefused("index repeated", kInvalid, [](Header& h) { --h.segment_index; });
  ExpectRefused("layer range", kInvalid, [](Header& h) { h.layer_begin = kLayers; });
  ExpectRefused("layer count 0", kInvalid, [](Header& h) { h.layer_count = 0; });
  ExpectRefused("layer overflow", kInvalid, [](Header& h) { h.layer_count = 0xffff; });
  ExpectRefused("head begin", kInvalid, [](Header& h) { h.head_begin = 1; });
  ExpectRefused("head count", kInvalid, [](Header& h) { h.head_count = 1; });
  ExpectRefused("head total", kInvalid, [](Header& h) { ++h.head_total; });
  ExpectRefused("the heads of another rank", kInvalid, [](Header& h) {
    h.head_begin = h.head_count;
    h.head_total = static_cast<uint16_t>(2 * h.head_count);
  });
  ExpectRefused("page begin", kInvalid, [](Header& h) { ++h.page_begin; });
  ExpectRefused("page overflow", kInvalid, [](Header& h) { h.page_begin = 0xfffffffc; });
  ExpectRefused("page count", kInvalid, [](Header& h) { --h.page_count; });
  ExpectRefused("page count 0", kInvalid, [](Header& h) { h.page_count = 0; });
  ExpectRefused("past the window", kInvalid, [](Header& h) { h.page_count += 10; });
  ExpectRefused("payload size", kInvalid, [](Header& h) { ++h.payload_bytes; });
  ExpectRefused("payload overflow", kInvalid, [](Header& h) { h.payload_bytes = UINT64_MAX; });
  ExpectRefused("overlap", kInvalid, [](Header& h) {
    h.layer_begin = 0;
    h.page_begin = 0;
  });
  ExpectRefused("checksum", absl::StatusCode::kDataLoss, [](Header& h) { h.checksum ^= 1; });
}

TEST_F(LandingSessionTest, DamagedHeaderBytesAreDataLoss) {
  for (const size_t at : {0u, 8u, 40u, 95u}) {
    const absl::Status status = Run([at](TransferRequest& message) {
      if (message.has_segment_header()) {
        (*message.mutable_segment_header())[at] ^= 4;
      }
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << at << ": " << status;
  }
}

TEST_F(LandingSessionTest, EveryWrongManifestFieldIsRefused) {
  const auto edit = [](const std::function<void(kv::v1::KvManifest&)>& change) {
    return [change](TransferRequest& message) {
      if (message.has_manifest()) {
        change(*message.mutable_manifest());
      }
    };
  };
  using Manifest = kv::v1::KvManifest;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  EXPECT_EQ(Run(edit([](Manifest& m) { m.set_reservation_id(1); })).code(), kPrecondition);
  EXPECT_EQ(Run(edit([](Manifest& m) { m.set_epoch(1); })).code(), kPrecondition);
  EXPECT_EQ(Run(edit([](Manifest& m) { m.set_attempt(0); })).code(), kInvalid);
  EXPECT_EQ(Run(edit([](Manifest& m) { m.set_prompt_tokens(38); })).code(), kInvalid);
  EXPECT_EQ(Run(edit([](Manifest& m) { m.set_segment_header_version(1); })).code(), kPrecondition);
  EXPECT_EQ(Run(edit([](Manifest& m) { m.set_transport("ucx"); })).code(), kPrecondition);
  EXPECT_EQ(Run(edit([](Manifest& m) { m.mutable_layout()->set_layers(4); })).code(),
            kPrecondition);
  EXPECT_EQ(Run(edit([](Manifest& m) { m.mutable_layout()->set_policy("diffkv"); })).code(),
            kPrecondition);
  EXPECT_EQ(Run([](TransferRequest& message) {
              if (message.has_manifest()) {
                message.mutable_commit();
              }
            }).code(),
            kInvalid);
}

TEST_F(LandingSessionTest, EveryWrongCommitIsRefused) {
  const auto edit = [](const std::function<void(worker::v1::Commit&)>& change) {
    return [change](TransferRequest& message) {
      if (message.has_commit()) {
        change(*message.mutable_commit());
      }
    };
  };
  using Commit = worker::v1::Commit;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(Run(edit([](Commit& c) { c.set_segments(c.segments() + 1); })).code(), kInvalid);
  EXPECT_EQ(Run(edit([](Commit& c) { c.set_payload_bytes(1); })).code(), kInvalid);
  EXPECT_EQ(Run(edit([](Commit& c) { c.set_digest(c.digest() ^ 1); })).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(Run(edit([](Commit& c) { c.set_kv_state("x"); })).code(), kInvalid);
  EXPECT_EQ(Run(edit([](Commit& c) { c.clear_first_tokens(); })).code(), kInvalid);
  EXPECT_EQ(Run(edit([](Commit& c) { c.mutable_first_tokens(0)->set_index(1); })).code(), kInvalid);
  EXPECT_EQ(Run(edit([](Commit& c) { c.mutable_first_tokens(0)->clear_tokens(); })).code(),
            kInvalid);
  EXPECT_EQ(Run(edit([](Commit& c) { c.mutable_finished(0)->set_index(2); })).code(), kInvalid);
  EXPECT_EQ(Run(edit([](Commit& c) { c.mutable_finished(0)->clear_reason(); })).code(), kInvalid);
}

TEST_F(LandingSessionTest, TheEngineHearsHowFarHiddenStatesHaveLanded) {
  const std::vector<int32_t> told = HiddenLanded({{0, 4}, {4, pages_per_layer()}});
  ASSERT_FALSE(told.empty());
  EXPECT_TRUE(std::ranges::is_sorted(told));
  EXPECT_THAT(told, testing::Contains(4));
  EXPECT_EQ(told.back(), hidden_pages_);
}

TEST_F(LandingSessionTest, TheEngineHearsOfTheLayersPagesOnceTheyAreInPlace) {
  EXPECT_FALSE(HiddenLanded({{0, 4}, {4, pages_per_layer()}}).empty());
  EXPECT_THAT(engine_.pages_landed(),
              testing::ElementsAre(
                  engine::LandedPages{.layer_begin = 0,
                                      .layer_end = kLayers - 1,
                                      .page_begin = 0,
                                      .page_end = static_cast<int32_t>(pages_per_layer())}));
}

TEST_F(LandingSessionTest, HiddenStatesBehindAGapAreNotTold) {
  const std::vector<int32_t> told = HiddenLanded({{4, pages_per_layer()}, {0, 4}});
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back(), 4);
}

TEST_F(LandingSessionTest, WithoutHiddenStatesTheEngineHearsNothing) {
  EXPECT_TRUE(Run(EditHeader([](kv::SegmentHeader&) {})).ok());
  EXPECT_THAT(engine_.hidden_landed(), testing::IsEmpty());
}

TEST_F(LandingSessionTest, MissingSegmentIsRefusedAtCommit) {
  const auto sink = Open(MakeTransfer(Reserve()));
  Give(*sink, 0, kLayers, 0, pages_per_layer() - 1);  // the last page never comes
  EXPECT_EQ(Wait(Commit(*sink)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine_.committed().empty());
}

TEST_F(LandingSessionTest, SamePageTwiceIsRefused) {
  const auto sink = Open(MakeTransfer(Reserve()));
  Give(*sink, 0, kLayers, 0, pages_per_layer());
  Give(*sink, 1, 1, 2, 3);
  EXPECT_EQ(Wait(Commit(*sink)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine_.committed().empty());
}

// What waits for the engine's word is bounded: nothing of another size than a header's is kept.
TEST_F(LandingSessionTest, MessagesThatComeBeforeTheAttemptAreLookedAtAtOnce) {
  const std::vector<std::pair<InProcessControl::Edit, absl::StatusCode>> wrong = {
      {[](TransferRequest& message) {
         if (message.has_segment_header()) {
           message.set_segment_header(std::string(1 << 20, 'x'));
         }
       },
       absl::StatusCode::kDataLoss},
      {[](TransferRequest& message) {
         if (message.has_segment_header()) {
           message.mutable_manifest();
         }
       },
       absl::StatusCode::kInvalidArgument},
      {[](TransferRequest& message) {
         if (message.has_segment_header()) {
           message.mutable_commit();
         }
       },
       absl::StatusCode::kInvalidArgument}};
  engine_.HoldAttempts();
  for (const auto& [edit, code] : wrong) {
    const auto sink = Open(MakeTransfer(Reserve()), edit);
    GiveAll(*sink);
    const absl::Status status = Wait(Commit(*sink));  // the engine has not answered
    EXPECT_EQ(status.code(), code) << status;
    landing_->OnReservationReleased(kReservation);
  }
}

TEST_F(LandingSessionTest, MessagesThatComeBeforeTheAttemptAreTakenWithIt) {
  engine_.HoldAttempts();
  const auto sink = Open(MakeTransfer(Reserve()));
  GiveAll(*sink);
  const auto outcome = Commit(*sink);
  EXPECT_FALSE(outcome->ended.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  engine_.AnswerAttempts();
  EXPECT_TRUE(Wait(outcome).ok()) << outcome->status;
  EXPECT_EQ(source_, target_);
}

TEST_F(LandingSessionTest, SecondStreamOfAnAttemptIsRefused) {
  const worker::v1::Reserved reserved = Reserve();
  const auto first = Open(MakeTransfer(reserved, 1));
  const auto twin = Open(MakeTransfer(reserved, 1));
  EXPECT_EQ(Wait(Commit(*twin)).code(), absl::StatusCode::kAlreadyExists);
  GiveAll(*first);
  EXPECT_TRUE(Wait(Commit(*first)).ok());
}

TEST_F(LandingSessionTest, ReservationOfAnotherSizeIsNotOpened) {
  engine::ReservationGrant grant;
  grant.prompt_tokens = kPromptTokens;
  grant.pages_per_layer = 1;
  grant.page_bytes = static_cast<int64_t>(page_.page_bytes());
  EXPECT_EQ(landing_->Open(grant, layout_).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace baton::handoff
