// Everything that a hand-off consists of, damaged in every place, for every format on the wire: it
// is refused, the reservation stays, and the next attempt succeeds.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

#include "common/kv/manifest/segment_header.h"
#include "common/transport/transport.h"
#include "proto/baton/worker/v1/kv_transfer.pb.h"
#include "tests/unit/handoff/handoff_fixture.h"

namespace baton::handoff {
namespace {

using worker::v1::TransferRequest;
using MessageCase = TransferRequest::MessageCase;

// How a format appears in a hand-off. Encoded ones say in their state how many pages they sent.
struct WireCase {
  std::string_view name;
  std::string_view format;
  std::string_view policy;
  bool state = false;
  bool hidden = false;  // the last section holds hidden states
};

constexpr WireCase kCases[] = {
    {.name = "dense", .format = "dense", .policy = "dense"},
    {.name = "fp8", .format = "fp8", .policy = "fp8"},
    {.name = "diffkv", .format = "diffkv", .policy = "diffkv:w=32", .state = true},
    {.name = "shadowkv", .format = "shadowkv", .policy = "shadowkv:rank=32"},
    {.name = "hidden_dense", .format = "dense", .policy = "hidden+dense", .hidden = true},
    {.name = "hidden8_diffkv",
     .format = "diffkv",
     .policy = "hidden8+diffkv",
     .state = true,
     .hidden = true},
};

// A message of a transfer with another serialization; false: what came of it is no message.
bool Replace(TransferRequest& message, const std::string& bytes) {
  TransferRequest changed;
  if (!changed.ParseFromString(bytes)) {
    return false;
  }
  message = std::move(changed);
  return true;
}

// Whether landing has to take both for the same. The request's id is for logs, unknown fields are
// for later versions.
bool SameMeaning(TransferRequest a, TransferRequest b) {
  for (TransferRequest* message : {&a, &b}) {
    message->DiscardUnknownFields();
    if (message->has_manifest()) {
      message->mutable_manifest()->clear_request_id();
    }
  }
  return google::protobuf::util::MessageDifferencer::Equals(a, b);
}

class CorruptionMatrixTest : public HandoffFixture {
 protected:
  static constexpr uint32_t kLastAttempt = UINT32_MAX;

  CorruptionMatrixTest() : HandoffFixture("loopback") {
    const WireCase& wire =
        *std::ranges::find(kCases, std::string_view(GetParam()), &WireCase::name);
    prompt_layout_.set_format(std::string(wire.format));
    prompt_layout_.set_policy(std::string(wire.policy));
    if (wire.hidden) {
      shipped_layers_ = kLayers - 1;
      hidden_pages_ = pages_per_layer();
      prompt_layout_.set_shipped_layers(static_cast<uint32_t>(shipped_layers_));
      prompt_layout_.set_hidden_page_bytes(page_.page_bytes());
    }
    sent_.assign(static_cast<size_t>(shipped_layers_), static_cast<int32_t>(pages_per_layer()));
    if (wire.state) {
      SetUpState();
    }
  }

  // A byte per layer: its pages.
  void SetUpState() {
    for (int32_t& pages : sent_) {
      pages -= 1 + static_cast<int32_t>(kv_state_.size());
      kv_state_.push_back(static_cast<char>(pages));
    }
    sent_pages_ = [layers = sent_.size(), most = pages_per_layer()](
                      std::string_view state) -> absl::StatusOr<std::vector<int32_t>> {
      std::vector<int32_t> pages(state.begin(), state.end());
      if (pages.size() != layers ||
          std::ranges::any_of(pages, [&](int32_t n) { return n < 0 || n > most; })) {
        return absl::InvalidArgumentError("no state of this prompt");
      }
      return pages;
    };
  }

  // A whole hand-off with messages changed by `edit`.
  absl::Status Attempt(const worker::v1::Reserved& reserved,
                       uint32_t attempt,
                       InProcessControl::Edit edit = {}) {
    const auto sink = Open(MakeTransfer(reserved, attempt), std::move(edit));
    // In two chunks, so that there are two segments at least.
    for (int32_t layer = 0; layer < shipped_layers_; ++layer) {
      Give(*sink, layer, 1, 0, 2);
    }
    for (int32_t layer = 0; layer < shipped_layers_; ++layer) {
      Give(*sink, layer, 1, 2, sent_[static_cast<size_t>(layer)]);
    }
    if (hidden_pages_ > 0) {
      Give(*sink, shipped_layers_, 1, 0, hidden_pages_);
    }
    return Wait(Commit(*sink));
  }

  void ExpectAccepted(const InProcessControl::Edit& edit, const std::string& what) {
    const size_t before = engine_.committed().size();
    const absl::Status status = Attempt(Reserve(), 1, edit);
    EXPECT_TRUE(status.ok()) << what << ": " << status;
    EXPECT_EQ(engine_.committed().size(), before + 1) << what;
  }
  // The damage is named by one of the three codes and leaves the reservation to the next attempt.
  void ExpectRefused(const InProcessControl::Edit& edit, const std::string& what) {
    const size_t before = engine_.committed().size();
    const worker::v1::Reserved reserved = Reserve();
    const absl::Status status = Attempt(reserved, 1, edit);
    EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsFailedPrecondition(status) ||
                absl::IsInvalidArgument(status))
        << what << ": " << status;
    EXPECT_EQ(engine_.committed().size(), before) << what;
    EXPECT_EQ(landing_->open_reservations(), 1) << what;
    const absl::Status again = Attempt(reserved, kLastAttempt);
    EXPECT_TRUE(again.ok()) << "after " << what << ": " << again;
    EXPECT_EQ(engine_.committed().size(), before + 1) << what;
    EXPECT_EQ(landing_->open_reservations(), 0) << what;
    ExpectArrived();
    refusal_ = status;
  }
  void ExpectArrived() {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const int64_t pages =
          layer < shipped_layers_ ? sent_[static_cast<size_t>(layer)] : hidden_pages_;
      const auto begin = static_cast<size_t>(layer * pages_per_layer()) * page_.page_bytes();
      const auto size = static_cast<size_t>(pages) * page_.page_bytes();
      ASSERT_TRUE(std::ranges::equal(std::span(source_).subspan(begin, size),
                                     std::span(target_).subspan(begin, size)))
          << "layer " << layer;
    }
  }

  // The messages of a hand-off that nobody changed.
  std::vector<TransferRequest> Messages() {
    std::vector<TransferRequest> messages;
    ExpectAccepted([&](TransferRequest& message) { messages.push_back(message); }, "unchanged");
    return messages;
  }
  // Sends message `index` with `bytes` instead, which are none, mean the same or are refused.
  void ExpectHeld(const std::vector<TransferRequest>& messages,
                  size_t index,
                  const std::string& bytes,
                  const std::string& what) {
    TransferRequest changed;
    if (!Replace(changed, bytes)) {
      return;  // the stream itself refuses such a message
    }
    size_t next = 0;
    const InProcessControl::Edit edit = [&](TransferRequest& message) {
      if (next++ == index) {
        message = changed;
      }
    };
    if (SameMeaning(messages[index], changed)) {
      ExpectAccepted(edit, what);
    } else {
      ExpectRefused(edit, what);
    }
  }
  // Every truncation and every flipped bit of a message.
  void ExpectEveryBitHeld(MessageCase kind) {
    const std::vector<TransferRequest> messages = Messages();
    const auto found = std::ranges::find(messages, kind, &TransferRequest::message_case);
    ASSERT_NE(found, messages.end());
    const auto index = static_cast<size_t>(found - messages.begin());
    const std::string bytes = found->SerializeAsString();
    for (size_t size = 0; size < bytes.size(); ++size) {
      ExpectHeld(messages, index, bytes.substr(0, size), absl::StrCat("cut to ", size, " bytes"));
    }
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      std::string flipped = bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      ExpectHeld(messages, index, flipped, absl::StrCat("bit ", bit));
    }
  }
  using Damage = std::function<void(transport::SendRun&, std::vector<std::byte>&)>;
  // Damages a run of the first segment's payload on its way: a copy of its bytes, or where they go.
  void ExpectPayloadRefused(const Damage& damage, size_t run, const std::string& what) {
    std::vector<std::byte> memory;
    faulty_.EditNextPost([&](transport::PostParams& params) {
      transport::SendRun& target = params.runs[std::min(run, params.runs.size() - 1)];
      memory.assign(target.source.begin(), target.source.end());
      damage(target, memory);
      target.source = memory;
    });
    ExpectRefused({}, what);
  }

  int32_t shipped_layers_ = kLayers;
  std::vector<int32_t> sent_;  // pages of each shipped layer
  absl::Status refusal_;       // the newest one
};

TEST_P(CorruptionMatrixTest, EveryBitAndLengthOfTheManifestIsHeld) {
  ExpectEveryBitHeld(MessageCase::kManifest);
}

TEST_P(CorruptionMatrixTest, EveryBitAndLengthOfASegmentHeaderIsHeld) {
  ExpectEveryBitHeld(MessageCase::kSegmentHeader);
}

TEST_P(CorruptionMatrixTest, EveryBitAndLengthOfTheCommitIsHeld) {
  ExpectEveryBitHeld(MessageCase::kCommit);
}

// Right checksums around wrong fields, as a sender of another version or a broken one makes them.
TEST_P(CorruptionMatrixTest, EveryFieldOfASealedHeaderIsHeld) {
  using Header = kv::SegmentHeader;
  const std::vector<std::pair<const char*, std::function<void(Header&)>>> changes = {
      {"reservation", [](Header& h) { ++h.reservation_id; }},
      {"epoch", [](Header& h) { --h.epoch; }},
      {"attempt", [](Header& h) { ++h.attempt; }},
      {"segment index", [](Header& h) { ++h.segment_index; }},
      {"first layer + 1", [](Header& h) { ++h.layer_begin; }},
      {"first layer behind all", [](Header& h) { h.layer_begin = kLayers; }},
      {"layers + 1", [](Header& h) { ++h.layer_count; }},
      {"layers - 1", [](Header& h) { --h.layer_count; }},
      {"first head", [](Header& h) { ++h.head_begin; }},
      {"heads + 1", [](Header& h) { ++h.head_count; }},
      {"heads - 1", [](Header& h) { --h.head_count; }},
      {"all heads + 1", [](Header& h) { ++h.head_total; }},
      {"first page", [](Header& h) { ++h.page_begin; }},
      {"pages + 1", [](Header& h) { ++h.page_count; }},
      {"pages - 1", [](Header& h) { --h.page_count; }},
      {"format",
       [](Header& h) {
         h.format =
             h.format == kv::WireFormat::kFp8 ? kv::WireFormat::kDense : kv::WireFormat::kFp8;
       }},
      {"format version", [](Header& h) { ++h.format_version; }},
      {"payload bytes + 1", [](Header& h) { ++h.payload_bytes; }},
      {"payload bytes - 1", [](Header& h) { --h.payload_bytes; }},
      {"checksum", [](Header& h) { h.checksum ^= uint64_t{1} << 63; }},
  };
  for (const uint32_t segment : {0u, 1u}) {
    for (const auto& [what, change] : changes) {
      ExpectRefused(EditHeader(change, segment), absl::StrCat(what, " of segment ", segment));
    }
  }
}

TEST_P(CorruptionMatrixTest, AFlippedBitAtEveryBorderOfThePayloadIsDataLoss) {
  const auto page = static_cast<size_t>(page_.page_bytes());
  for (size_t run = 0; run < kLayers; ++run) {
    for (const size_t at : {size_t{0}, page - 1, page, 2 * page - 1, 2 * page}) {
      for (const int bit : {0, 7}) {
        ExpectPayloadRefused(
            [&](transport::SendRun&, std::vector<std::byte>& memory) {
              memory[std::min(at, memory.size() - 1)] ^= static_cast<std::byte>(1 << bit);
            },
            run,
            absl::StrCat("byte ", at, " of run ", run, " bit ", bit));
        EXPECT_TRUE(absl::IsDataLoss(refusal_)) << refusal_;
      }
    }
  }
}

TEST_P(CorruptionMatrixTest, AByteMoreOrLessAtEveryBorderOfThePayloadIsRefused) {
  for (size_t run = 0; run < kLayers; ++run) {
    const std::string where = absl::StrCat(" run ", run);
    ExpectPayloadRefused([](transport::SendRun&, auto& memory) { memory.pop_back(); },
                         run,
                         "one byte less at the end of" + where);
    ExpectPayloadRefused([](transport::SendRun&, auto& memory) { memory.push_back(std::byte{1}); },
                         run,
                         "one byte more at the end of" + where);
    ExpectPayloadRefused(
        [](transport::SendRun& target, auto& memory) {
          memory.erase(memory.begin());
          ++target.offset;
        },
        run,
        "one byte less at the beginning of" + where);
    ExpectPayloadRefused([](transport::SendRun& target, auto&) { ++target.offset; },
                         run,
                         "one byte further:" + where);
    ExpectPayloadRefused([](transport::SendRun& target, auto&) { --target.offset; },
                         run,
                         "one byte before:" + where);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats,
    CorruptionMatrixTest,
    testing::Values("dense", "fp8", "diffkv", "shadowkv", "hidden_dense", "hidden8_diffkv"),
    [](const testing::TestParamInfo<const char*>& instance) {
      return std::string(instance.param);
    });

}  // namespace
}  // namespace baton::handoff
