// Hand-offs between engines on devices, with checksums and with what prefill retains.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/checkpoint/checkpoint.h"
#include "common/engine/engine.h"
#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "common/handoff/land/landing.h"
#include "common/handoff/retain/retained_kv.h"
#include "common/handoff/retain/retention.h"
#include "common/handoff/retain/retention_store.h"
#include "common/handoff/send/sender.h"
#include "common/kv/manifest/layout.h"
#include "common/metrics/registry.h"
#include "common/model/forward.h"
#include "common/transport/transport.h"
#include "tests/kernels/device_double/guarded_memory.h"
#include "tests/support/faulty_transport.h"
#include "tests/unit/engine/eventually.h"
#include "tests/unit/engine/host_answer.h"
#include "tests/unit/engine/placed_engine.h"
#include "tests/unit/engine/recording_listener.h"
#include "tests/unit/engine/split_run.h"
#include "tests/unit/handoff/handoff_fixture.h"
#include "tests/unit/transport/transport_pair.h"

namespace baton::handoff {
namespace {

using engine::MakeRequest;
using engine::Place;
using engine::PlacedEngine;
using engine::RecordingListener;
using engine::Role;

kv::v1::KvLayout LayoutOf(const engine::Engine& engine) {
  const model::KvShape shape = engine.model().kv_shape();
  return kv::DenseLayout(engine.model().fingerprint(), shape.layers, engine.page_layout());
}

// A decode worker on a device: its engine, where prompts land, and how peers reach it.
struct DecodeSide {
  explicit DecodeSide(const checkpoint::Checkpoint& checkpoint,
                      const kv::v1::KvLayout& layout,
                      const std::string& transport)
      : pair(MakePair(transport)),
        landing(std::make_unique<Landing>(
            std::vector<transport::Transport*>{&pair->receiver()}, layout, LandingOptions{})),
        decode(std::make_unique<PlacedEngine>(checkpoint,
                                              Role::kDecode,
                                              Place::kDevice,
                                              /*chunk=*/64,
                                              int64_t{16} << 20,
                                              landing.get())) {
    landing->set_engine(&decode->engine());
  }
  ~DecodeSide() { decode.reset(); }

  // Over memory of the host ("loopback"), or from one device to the other.
  static std::unique_ptr<transport::TransportPair> MakePair(const std::string& transport) {
    kernels::GuardedMemory& device = kernels::GuardedMemory::Get();
    if (transport == "ipc") {
      return std::make_unique<transport::IpcPair>(/*shares=*/false, &device.landing());
    }
    if (transport == "nccl") {
      return std::make_unique<transport::NcclPair>(device, device.landing());
    }
    return transport::TransportPair::Make(transport);
  }

  std::unique_ptr<transport::TransportPair> pair;
  std::unique_ptr<Landing> landing;
  std::unique_ptr<PlacedEngine> decode;
};

class DeviceHandoffTest : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  DeviceHandoffTest()
      : checkpoint_(engine::OpenModel(engine::SendsHidden(policy()) ? "tiny-llama-needle-swiftkv-l6"
                                                                    : "tiny-llama-needle")),
        prefill_(*checkpoint_, Role::kPrefill, Place::kDevice, /*chunk=*/64),
        layout_(LayoutOf(prefill_.engine())),
        side_(*checkpoint_, layout_, std::get<1>(GetParam())),
        faulty_(&side_.pair->sender()),
        handshake_([this] { return side_.landing.get(); }),
        sender_(std::make_unique<Sender>(
            std::vector<transport::Transport*>{&faulty_}, &handshake_, layout_, SenderOptions{})) {
    want_ = engine::AnswersOfTheHost(*checkpoint_, policy(), 1).front().tokens;
    AwaitPeer();
  }
  ~DeviceHandoffTest() override { sender_.reset(); }

  static const char* policy() { return std::get<0>(GetParam()); }
  static bool reads_devices() { return std::get<1>(GetParam()) != std::string_view("loopback"); }

  // Requests find their peer connected, as all but the first do.
  void AwaitPeer() {
    const std::unique_ptr<engine::KvSink> sink = Open(Reserve("first", Listener()), 1);
    EXPECT_TRUE(engine::Eventually([&] { return sink->reads_devices() == reads_devices(); }));
    absl::Notification released;
    sink->Abort(absl::CancelledError("enough"), [&] { released.Notify(); });
    released.WaitForNotification();
    side_.decode->engine().Cancel("first", absl::CancelledError("enough"));
    side_.decode->ExpectFree();
  }
  static std::shared_ptr<RecordingListener> Listener() {
    return std::make_shared<RecordingListener>();
  }
  // One bit of the next post's first byte arrives flipped.
  void DamageNextPost() {
    faulty_.EditNextPost([this](transport::PostParams& params) {
      std::span<const std::byte>& source = params.runs.front().source;
      damaged_.resize(source.size());
      if (kernels::GuardedMemory::Get().Contains(source.data())) {
        EXPECT_TRUE(kernels::GuardedMemory::Get()
                        .Download(damaged_.data(), source.data(), source.size())
                        .ok());
      } else {
        std::copy(source.begin(), source.end(), damaged_.begin());
      }
      damaged_.front() ^= std::byte{1};
      source = damaged_;
    });
  }
  engine::HandoffShape Shape() const {
    return *prefill_.engine().DescribeHandoff(policy(), kPromptTokens);
  }
  kv::v1::KvLayout PromptLayout() const {
    const engine::HandoffShape shape = Shape();
    kv::v1::KvLayout layout = layout_;
    layout.set_policy(shape.policy);
    layout.set_format(shape.format);
    layout.set_format_version(shape.format_version);
    layout.set_page_tokens(static_cast<uint32_t>(shape.page_tokens));
    layout.set_shipped_layers(static_cast<uint32_t>(shape.shipped_layers));
    layout.set_hidden_page_bytes(static_cast<uint64_t>(shape.hidden_page_bytes));
    layout.set_calibration_digest(shape.calibration_digest);
    layout.set_page_bytes(static_cast<uint64_t>(shape.window.page_bytes));
    return layout;
  }
  worker::v1::Reserved Reserve(const std::string& id, std::shared_ptr<RecordingListener> listener) {
    worker::v1::Reserved reserved;
    absl::Notification answered;
    engine::ReserveRequest request = engine::ReserveFor(MakeRequest(policy(), 0));
    request.request_id = id;
    const absl::Status status = side_.decode->engine().Reserve(
        std::move(request),
        std::move(listener),
        [&](const absl::StatusOr<engine::ReservationGrant>& grant) {
          EXPECT_TRUE(grant.ok()) << grant.status();
          const auto endpoints = side_.landing->Open(*grant, PromptLayout());
          EXPECT_TRUE(endpoints.ok()) << endpoints.status();
          reserved.set_reservation_id(grant->reservation_id);
          reserved.set_epoch(grant->epoch);
          *reserved.mutable_layout() = PromptLayout();
          reserved.set_pages_per_layer(static_cast<uint32_t>(grant->pages_per_layer));
          reserved.set_hidden_pages(static_cast<uint32_t>(grant->hidden_pages));
          reserved.set_control_address("decode:1");
          for (const worker::v1::TransportEndpoint& endpoint : *endpoints) {
            *reserved.add_endpoints() = endpoint;
          }
          answered.Notify();
        });
    EXPECT_TRUE(status.ok()) << status;
    answered.WaitForNotification();
    return reserved;
  }
  std::unique_ptr<engine::KvSink> Open(const worker::v1::Reserved& reserved, uint32_t attempt) {
    return sender_->Open(
        {.request_id = "0",
         .reserved = reserved,
         .attempt = attempt,
         .prompt_tokens = kPromptTokens,
         .layout = PromptLayout(),
         .pages = {.per_layer = Shape().window.pages_per_layer, .hidden = Shape().hidden_pages}},
        std::make_unique<InProcessControl>(side_.landing.get()));
  }
  // Computes the prompt, ships it as attempt 1 and retains it.
  std::shared_ptr<RecordingListener> Prefill(const worker::v1::Reserved& reserved) {
    engine::GenerateRequest request = MakeRequest(policy(), 0);
    request.sink =
        retention_.Retain(retention_.store().Open("0", "prompt", 0, absl::InfiniteFuture()),
                          Open(reserved, /*attempt=*/1));
    auto listener = std::make_shared<RecordingListener>();
    EXPECT_TRUE(prefill_.engine().Submit(std::move(request), listener).ok());
    EXPECT_TRUE(listener->AwaitDone());
    return listener;
  }
  absl::Status ShipAgain(const worker::v1::Reserved& reserved, uint32_t attempt) {
    std::shared_ptr<const RetainedKv> kv;
    absl::Notification found;
    retention_.store().Find(
        "0", "prompt", absl::Now(), [&](std::shared_ptr<const RetainedKv> answer) {
          kv = std::move(answer);
          found.Notify();
        });
    found.WaitForNotification();
    if (kv == nullptr) {
      return absl::NotFoundError("nothing is retained");
    }
    absl::Status result = absl::UnknownError("no answer");
    absl::Notification shipped;
    ShipRetained(std::move(kv), Open(reserved, attempt), [&](absl::Status status, int64_t) {
      result = std::move(status);
      shipped.Notify();
    });
    shipped.WaitForNotification();
    return result;
  }
  static std::vector<int32_t> Tokens(const RecordingListener& prefill,
                                     const RecordingListener& decode) {
    std::vector<int32_t> tokens = prefill.tokens();
    const std::vector<int32_t> rest = decode.tokens();
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    return tokens;
  }

  static constexpr int64_t kPromptTokens = 300;  // of request 0

  std::vector<int32_t> want_;
  const std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  metrics::Registry registry_{metrics::RegistryOptions{.model_name = "tiny", .role = "prefill"}};
  Retention retention_{RetentionOptions{.budget_bytes = 64 << 20, .lease = absl::Minutes(1)},
                       registry_};
  PlacedEngine prefill_;
  const kv::v1::KvLayout layout_;
  DecodeSide side_;
  transport::FaultyTransport faulty_;
  InProcessHandshake handshake_;
  std::unique_ptr<Sender> sender_;
  std::vector<std::byte> damaged_;
};

TEST_P(DeviceHandoffTest, AVerifiedPromptGivesTheTokensOfOneEngine) {
  const auto decoded = std::make_shared<RecordingListener>();
  const auto prefilled = Prefill(Reserve("0", decoded));
  EXPECT_TRUE(prefilled->status().ok()) << prefilled->status();
  ASSERT_TRUE(decoded->AwaitDone());
  EXPECT_TRUE(decoded->status().ok()) << decoded->status();
  EXPECT_EQ(Tokens(*prefilled, *decoded), want_);
  prefill_.ExpectFree();
  side_.decode->ExpectFree();
}

TEST_P(DeviceHandoffTest, AFlippedBitLeavesNothingBehind) {
  const auto decoded = std::make_shared<RecordingListener>();
  DamageNextPost();
  const auto prefilled = Prefill(Reserve("0", decoded));
  EXPECT_EQ(prefilled->status().code(), absl::StatusCode::kDataLoss);
  prefill_.ExpectFree();
  EXPECT_FALSE(decoded->done());
  EXPECT_TRUE(decoded->tokens().empty());
  side_.decode->engine().Cancel("0", absl::CancelledError("enough"));
  EXPECT_TRUE(decoded->AwaitDone());
  side_.decode->ExpectFree();
  EXPECT_EQ(side_.landing->open_reservations(), 0);
}

TEST_P(DeviceHandoffTest, ADamagedPromptIsShippedAgainFromWhatWasRetained) {
  const auto decoded = std::make_shared<RecordingListener>();
  const worker::v1::Reserved reserved = Reserve("0", decoded);
  DamageNextPost();
  const auto prefilled = Prefill(reserved);
  EXPECT_EQ(prefilled->status().code(), absl::StatusCode::kDataLoss);
  prefill_.ExpectFree();  // nothing of the device is read any more
  const absl::Status again = ShipAgain(reserved, /*attempt=*/2);
  EXPECT_TRUE(again.ok()) << again;
  ASSERT_TRUE(decoded->AwaitDone());
  EXPECT_EQ(Tokens(*prefilled, *decoded), want_);
  side_.decode->ExpectFree();
}

TEST_P(DeviceHandoffTest, ALostAnswerIsShippedAgainToAnotherReservation) {
  const auto lost = std::make_shared<RecordingListener>();
  const auto prefilled = Prefill(Reserve("0", lost));
  EXPECT_TRUE(prefilled->status().ok()) << prefilled->status();
  EXPECT_TRUE(lost->AwaitTokens(1));
  side_.decode->engine().Cancel("0", absl::UnavailableError("lost"));
  EXPECT_TRUE(lost->AwaitDone());
  prefill_.ExpectFree();
  side_.decode->ExpectFree();
  const auto decoded = std::make_shared<RecordingListener>();
  const absl::Status again = ShipAgain(Reserve("again", decoded), /*attempt=*/1);
  EXPECT_TRUE(again.ok()) << again;
  ASSERT_TRUE(decoded->AwaitDone());
  EXPECT_EQ(Tokens(*prefilled, *decoded), want_);
  side_.decode->ExpectFree();
}

std::string NameOf(const testing::TestParamInfo<std::tuple<const char*, const char*>>& instance) {
  const auto& [policy, transport] = instance.param;
  std::string name = policy;
  std::replace(name.begin(), name.end(), '+', '_');
  return name.substr(0, name.find(':')) + "_over_" + transport;
}

INSTANTIATE_TEST_SUITE_P(
    Formats,
    DeviceHandoffTest,
    testing::Combine(testing::Values("dense",
                                     "fp8",
                                     "diffkv:ah=2,al=0.5,w=16",
                                     "shadowkv:rank=32,budget=48,outliers=2,local=7",
                                     "hidden8+diffkv:ah=2,al=0.5,w=16"),
                     testing::Values("loopback", "ipc", "nccl")),
    NameOf);

}  // namespace
}  // namespace baton::handoff
