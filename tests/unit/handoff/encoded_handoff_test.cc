// Hand-offs of a format that decides how many pages of each layer it sends.
#include <array>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

#include "tests/unit/handoff/handoff_fixture.h"

namespace baton::handoff {
namespace {

using worker::v1::TransferRequest;

// State of the format here: a byte per layer, the low four bits say how many pages.
class EncodedHandoffTest : public HandoffFixture {
 protected:
  EncodedHandoffTest() : HandoffFixture("loopback") {
    prompt_layout_.set_format("diffkv");
    prompt_layout_.set_policy("diffkv:w=32");
    prompt_layout_.set_page_tokens(0);
    sent_pages_ = [this](std::string_view state) -> absl::StatusOr<std::vector<int32_t>> {
      std::vector<int32_t> pages;
      for (const char byte : state) {
        pages.push_back(byte & 15);
        if (pages.back() > pages_per_layer()) {
          return absl::InvalidArgumentError("a layer of too many pages");
        }
      }
      if (pages.size() != kLayers) {
        return absl::InvalidArgumentError(absl::StrCat("state of ", pages.size(), " layers"));
      }
      return pages;
    };
    kv_state_ = "\x03\x07\x51";
  }

  void GiveLayers(engine::KvSink& sink, const std::array<int64_t, kLayers>& pages) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      if (pages[static_cast<size_t>(layer)] > 0) {
        Give(sink, layer, 1, 0, pages[static_cast<size_t>(layer)]);
      }
    }
  }
  // A whole hand-off of 3, 7 and 1 pages, with messages changed by `edit`.
  absl::Status Run(InProcessControl::Edit edit, uint32_t attempt = 1) {
    const auto sink = Open(MakeTransfer(Reserve(), attempt), std::move(edit));
    GiveLayers(*sink, {3, 7, 1});
    const absl::Status status = Wait(Commit(*sink));
    EXPECT_EQ(status.ok(), engine_.committed().size() == 1) << status;
    landing_->OnReservationReleased(kReservation);
    return status;
  }
  // The commit's answer when these pages came; each entry: layer, first page, end.
  absl::Status RunPages(const std::vector<std::array<int32_t, 3>>& given) {
    const auto sink = Open(MakeTransfer(Reserve()));
    for (const auto& [layer, begin, end] : given) {
      Give(*sink, layer, 1, begin, end);
    }
    const absl::Status status = Wait(Commit(*sink));
    landing_->OnReservationReleased(kReservation);
    return status;
  }
};

TEST_F(EncodedHandoffTest, TheFirstPagesOfEachLayerArriveWithTheState) {
  const auto sink = Open(MakeTransfer(Reserve()));
  GiveLayers(*sink, {3, 7, 1});
  const auto outcome = Commit(*sink);
  ASSERT_TRUE(Wait(outcome).ok()) << outcome->status;
  ASSERT_EQ(engine_.committed().size(), 1u);
  EXPECT_EQ(engine_.committed()[0].info.kv_state, kv_state_);
  const std::vector<int64_t> sent = {3, 7, 1};
  for (size_t index = 0; index < pages(); ++index) {
    const auto layer = index / static_cast<size_t>(pages_per_layer());
    const auto page = static_cast<int64_t>(index) % pages_per_layer();
    const std::span<std::byte> target = TargetPage(index);
    const auto source = std::span(source_).subspan(index * page_.page_bytes(), page_.page_bytes());
    if (page < sent[layer]) {
      EXPECT_TRUE(std::equal(target.begin(), target.end(), source.begin())) << index;
    } else {
      EXPECT_TRUE(std::all_of(target.begin(), target.end(), [](std::byte byte) {
        return byte == std::byte{0xee};
      })) << index;
    }
  }
}

TEST_F(EncodedHandoffTest, ALayerMaySendNothing) {
  kv_state_ = std::string("\x03\x00\x01", 3);
  EXPECT_TRUE(RunPages({{0, 0, 3}, {2, 0, 1}}).ok());
  EXPECT_EQ(engine_.committed().size(), 1u);
}

TEST_F(EncodedHandoffTest, CommitIsRefusedUnlessExactlyTheFirstPagesOfEachLayerCame) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(RunPages({{0, 0, 3}, {1, 0, 6}, {2, 0, 1}}).code(), kInvalid) << "one too few";
  EXPECT_EQ(RunPages({{0, 0, 3}, {1, 0, 8}, {2, 0, 1}}).code(), kInvalid) << "one too many";
  EXPECT_EQ(RunPages({{0, 0, 3}, {1, 0, 7}}).code(), kInvalid) << "a layer without its page";
  EXPECT_EQ(RunPages({{0, 1, 4}, {1, 0, 7}, {2, 0, 1}}).code(), kInvalid) << "not from the first";
  EXPECT_EQ(RunPages({{0, 0, 2}, {0, 3, 4}, {1, 0, 7}, {2, 0, 1}}).code(), kInvalid) << "a gap";
  EXPECT_EQ(RunPages({{0, 0, 4}, {1, 0, 6}, {2, 0, 1}}).code(), kInvalid) << "the right sum";
  EXPECT_EQ(RunPages({}).code(), kInvalid) << "nothing";
  EXPECT_TRUE(engine_.committed().empty());
  EXPECT_TRUE(RunPages({{2, 0, 1}, {0, 2, 3}, {1, 0, 7}, {0, 0, 2}}).ok()) << "in any order";
}

TEST_F(EncodedHandoffTest, SegmentOfAnotherFormatIsRefused) {
  for (const kv::WireFormat format :
       {kv::WireFormat::kDense, kv::WireFormat::kFp8, kv::WireFormat::kShadowKv}) {
    const absl::Status status =
        Run(EditHeader([&](kv::SegmentHeader& header) { header.format = format; }));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  }
  EXPECT_TRUE(Run(EditHeader([&](kv::SegmentHeader& header) {
                header.format = kv::WireFormat::kDiffKv;  // what it was
              })).ok());
}

// The changed state asks for the same pages, so only the digest tells.
TEST_F(EncodedHandoffTest, AStateChangedByOneByteFailsTheDigest) {
  for (size_t at = 0; at < kLayers; ++at) {
    const absl::Status status = Run([at](TransferRequest& message) {
      if (message.has_commit()) {
        (*message.mutable_commit()->mutable_kv_state())[at] ^= 0x20;
      }
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << at << ": " << status;
  }
}

TEST_F(EncodedHandoffTest, AStateThatCannotBeIsRefusedAndTheNextAttemptMaySucceed) {
  const worker::v1::Reserved reserved = Reserve();
  uint32_t attempt = 0;
  for (const std::string& state : {std::string(),
                                   std::string("\x03\x07"),
                                   std::string("\x03\x07\x01\x01"),
                                   std::string("\x0f\x07\x01")}) {
    const auto sink = Open(MakeTransfer(reserved, ++attempt), [&](TransferRequest& message) {
      if (message.has_commit()) {
        message.mutable_commit()->set_kv_state(state);
      }
    });
    GiveLayers(*sink, {3, 7, 1});
    EXPECT_EQ(Wait(Commit(*sink)).code(), absl::StatusCode::kInvalidArgument) << state.size();
    EXPECT_TRUE(engine_.committed().empty());
    EXPECT_EQ(landing_->open_reservations(), 1);
  }
  const auto sink = Open(MakeTransfer(reserved, ++attempt));
  GiveLayers(*sink, {3, 7, 1});
  EXPECT_TRUE(Wait(Commit(*sink)).ok());
  EXPECT_EQ(landing_->open_reservations(), 0);
}

TEST_F(EncodedHandoffTest, TransferUnderAnotherPolicyIsRefusedBeforeAnythingIsSent) {
  OutgoingTransfer transfer = MakeTransfer(Reserve());
  transfer.layout.set_policy("diffkv:w=64");
  const auto sink = Open(std::move(transfer));
  GiveLayers(*sink, {3, 7, 1});
  const absl::Status status = Wait(Commit(*sink));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("policy"));
  EXPECT_TRUE(TargetUntouched());
}

TEST_F(EncodedHandoffTest, AFormatWithoutANumberOnTheWireIsRefused) {
  prompt_layout_.set_format("int4");
  const auto sink = Open(MakeTransfer(Reserve()));
  GiveLayers(*sink, {3, 7, 1});
  EXPECT_EQ(Wait(Commit(*sink)).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(TargetUntouched());
}

}  // namespace
}  // namespace baton::handoff
