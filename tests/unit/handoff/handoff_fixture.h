// A prefill and a decode side joined in process, over any transport.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

#include "common/base/pieces.h"
#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "common/handoff/land/landing.h"
#include "common/handoff/land/landing_session.h"
#include "common/handoff/send/control_stream.h"
#include "common/handoff/send/handshake_client.h"
#include "common/handoff/send/sender.h"
#include "common/kv/manifest/layout.h"
#include "common/kv/manifest/segment_header.h"
#include "common/transport/transport.h"
#include "tests/support/faulty_transport.h"
#include "tests/unit/handoff/fake_engine.h"
#include "tests/unit/transport/transport_pair.h"

namespace baton::handoff {

constexpr absl::Duration kLong = absl::Seconds(20);

// Joins a Sender's control stream to a LandingSession with direct calls.
class InProcessControl : public ControlStream {
 public:
  using Edit = std::function<void(worker::v1::TransferRequest&)>;

  // `edit` may change each message on its way.
  explicit InProcessControl(Landing* landing, Edit edit = {})
      : landing_(landing), edit_(std::move(edit)) {}
  ~InProcessControl() override { Cancel(); }

  void Start(std::shared_ptr<ControlStreamEvents> events) override {
    responder_ = std::make_shared<Responder>(std::move(events));
    session_ = landing_->StartSession(responder_);
  }
  void Send(worker::v1::TransferRequest message) override {
    if (edit_) {
      edit_(message);
    }
    session_->OnMessage(message);
  }
  void Cancel() override {
    if (session_ != nullptr) {
      session_->OnClosed();
      responder_->Close(absl::CancelledError("cancelled by the sender"));
    }
  }

 private:
  class Responder : public LandingResponder {
   public:
    explicit Responder(std::shared_ptr<ControlStreamEvents> events) : events_(std::move(events)) {}
    void Send(worker::v1::TransferResponse message) override {
      if (const auto events = Get(false); events != nullptr) {
        events->OnMessage(message);
      }
    }
    void Finish(absl::Status status) override { Close(status); }
    void Close(const absl::Status& status) {
      if (const auto events = Get(true); events != nullptr) {
        events->OnClosed(status);
      }
    }

   private:
    std::shared_ptr<ControlStreamEvents> Get(bool close) {
      absl::MutexLock lock(&mutex_);
      return close ? std::exchange(events_, nullptr) : events_;
    }
    absl::Mutex mutex_;
    std::shared_ptr<ControlStreamEvents> events_ ABSL_GUARDED_BY(mutex_);
  };

  Landing* const landing_;
  const Edit edit_;
  std::shared_ptr<Responder> responder_;
  std::shared_ptr<LandingSession> session_;
};

// Changes the header of one segment on its way and makes its own checksum right again.
inline InProcessControl::Edit EditHeader(const std::function<void(kv::SegmentHeader&)>& change,
                                         uint32_t segment_index = 1) {
  return [change, segment_index](worker::v1::TransferRequest& message) {
    if (!message.has_segment_header()) {
      return;
    }
    const std::string& bytes = message.segment_header();
    kv::SegmentHeader header = *kv::DecodeSegmentHeader(std::as_bytes(std::span(bytes)));
    if (header.segment_index == segment_index) {
      change(header);
      const auto encoded = kv::EncodeSegmentHeader(header);
      message.set_segment_header(encoded.data(), encoded.size());
    }
  };
}

// Answers with a Landing of the same process.
class InProcessHandshake : public HandshakeClient {
 public:
  explicit InProcessHandshake(std::function<Landing*()> landing) : landing_(std::move(landing)) {}
  absl::StatusOr<worker::v1::HandshakeResponse> Handshake(
      const std::string& /*control_address*/,
      const worker::v1::HandshakeRequest& request) override {
    ++handshakes;
    if (!status.ok()) {
      return status;
    }
    Landing* landing = landing_();
    if (landing == nullptr) {
      return absl::UnavailableError("decode is down");
    }
    return landing->Handshake(request);
  }
  std::atomic<int> handshakes{0};
  absl::Status status;  // set before a transfer is opened; not OK: what every handshake comes to

 private:
  const std::function<Landing*()> landing_;
};

// What a sink's Commit or Abort answered.
struct Outcome {
  absl::Notification ended;
  absl::Status status;
  int64_t wire_bytes = 0;
};

class HandoffFixture : public testing::TestWithParam<const char*> {
 protected:
  static constexpr uint64_t kReservation = 77;
  static constexpr uint64_t kEpoch = 0xabcdef0123456789;
  static constexpr int32_t kLayers = 3;
  static constexpr int64_t kPromptTokens = 37;  // 10 pages, the last one partial

  explicit HandoffFixture(const std::string& kind)
      : pair_(transport::TransportPair::Make(kind)),
        faulty_(&pair_->sender()),
        handshake_([this] { return landing_.get(); }) {
    layout_ = kv::DenseLayout(0x1234, kLayers, page_);
    prompt_layout_ = layout_;
    StartLanding();
    StartSender({.segment_bytes = segment_bytes_});
    Fill();
  }
  HandoffFixture() : HandoffFixture(GetParam()) {}
  ~HandoffFixture() override {
    sender_.reset();
    landing_.reset();
  }

  void StartSender(SenderOptions options) {
    sender_ = std::make_unique<Sender>(
        std::vector<transport::Transport*>{&faulty_}, &handshake_, layout_, options);
  }
  void StartLanding() {
    landing_ = std::make_unique<Landing>(
        std::vector<transport::Transport*>{&pair_->receiver()}, layout_, LandingOptions{});
    landing_->set_engine(&engine_);
  }
  int64_t pages_per_layer() const { return page_.pages_for(kPromptTokens); }
  size_t pages() const { return static_cast<size_t>(kLayers * pages_per_layer()); }

  void Fill() {
    source_.resize(pages() * page_.page_bytes());
    target_.assign(source_.size(), std::byte{0xee});
    std::mt19937 random(5);
    for (std::byte& byte : source_) {
      byte = static_cast<std::byte>(random());
    }
  }
  std::span<std::byte> TargetPage(size_t index) {
    return std::span(target_).subspan(index * page_.page_bytes(), page_.page_bytes());
  }

  // Grants the reservation and opens its windows; `Reserved` as decode would answer it.
  worker::v1::Reserved Reserve() {
    engine::ReservationGrant grant;
    grant.reservation_id = kReservation;
    grant.epoch = kEpoch;
    grant.prompt_tokens = kPromptTokens;
    grant.pages_per_layer = static_cast<int32_t>(pages_per_layer());
    grant.page_bytes = static_cast<int64_t>(page_.page_bytes());
    grant.hidden_pages = static_cast<int32_t>(hidden_pages_);
    grant.sent_pages = sent_pages_;
    for (size_t i = 0; i < pages(); ++i) {
      grant.memory.push_back(TargetPage(i));
    }
    engine_.Grant(kReservation, kEpoch);
    const auto endpoints = landing_->Open(grant, prompt_layout_);
    EXPECT_TRUE(endpoints.ok()) << endpoints.status();
    worker::v1::Reserved reserved;
    reserved.set_reservation_id(kReservation);
    reserved.set_epoch(kEpoch);
    *reserved.mutable_layout() = prompt_layout_;
    reserved.set_pages_per_layer(static_cast<uint32_t>(grant.pages_per_layer));
    reserved.set_hidden_pages(static_cast<uint32_t>(hidden_pages_));
    reserved.set_control_address("decode:1");
    for (const worker::v1::TransportEndpoint& endpoint : *endpoints) {
      *reserved.add_endpoints() = endpoint;
    }
    return reserved;
  }

  OutgoingTransfer MakeTransfer(const worker::v1::Reserved& reserved, uint32_t attempt = 1) {
    return OutgoingTransfer{.request_id = "request-1",
                            .reserved = reserved,
                            .attempt = attempt,
                            .prompt_tokens = kPromptTokens,
                            .layout = prompt_layout_,
                            .pages = {.per_layer = pages_per_layer(), .hidden = hidden_pages_}};
  }
  std::unique_ptr<engine::KvSink> Open(OutgoingTransfer transfer,
                                       InProcessControl::Edit edit = {}) {
    return sender_->Open(std::move(transfer),
                         std::make_unique<InProcessControl>(landing_.get(), std::move(edit)));
  }

  // One call of the engine: `layers` from layer_begin, of pages [page_begin, page_end).
  void Give(engine::KvSink& sink,
            int32_t layer_begin,
            int32_t layers,
            int64_t begin,
            int64_t end,
            bool encoded = false) {
    engine::ReadyKv ready;
    ready.encoded = encoded;
    ready.layer_begin = layer_begin;
    ready.layer_end = layer_begin + layers;
    ready.page_begin = static_cast<int32_t>(begin);
    ready.page_count = static_cast<int32_t>(end - begin);
    for (int32_t layer = layer_begin; layer < ready.layer_end; ++layer) {
      for (int64_t page = begin; page < end; ++page) {
        const auto index = static_cast<size_t>(layer * pages_per_layer() + page);
        AddAdjacent<const std::byte>(
            std::span(source_).subspan(index * page_.page_bytes(), page_.page_bytes()),
            ready.memory);
      }
    }
    sink.LayersReady(std::move(ready));
  }
  // The prompt in two prefill chunks, layer by layer.
  void GiveAll(engine::KvSink& sink) {
    for (const auto& [begin, end] :
         {std::pair<int64_t, int64_t>{0, 4}, std::pair<int64_t, int64_t>{4, pages_per_layer()}}) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        Give(sink, layer, 1, begin, end);
      }
    }
  }

  engine::CommitInfo MakeCommit() const {
    engine::CommitInfo info;
    info.first_tokens.resize(2);
    info.first_tokens[0] = {.token_id = 11, .logprob = -0.5f, .top_logprobs = {{11, -0.5f}}};
    info.first_tokens[1] = {.token_id = 12, .logprob = -1.5f, .top_logprobs = {}};
    info.finished.resize(2);
    info.finished[1] =
        engine::SequenceFinish{.reason = engine::FinishReason::kStop, .stop_token_id = 12};
    info.prompt_token_bitmap = {1, 2, 3};
    info.kv_state = kv_state_;
    return info;
  }
  std::shared_ptr<Outcome> Commit(engine::KvSink& sink) const {
    auto outcome = std::make_shared<Outcome>();
    sink.Commit(MakeCommit(), [outcome](absl::Status status, int64_t wire_bytes) {
      outcome->status = std::move(status);
      outcome->wire_bytes = wire_bytes;
      outcome->ended.Notify();
    });
    return outcome;
  }
  static absl::Status Wait(const std::shared_ptr<Outcome>& outcome) {
    if (!outcome->ended.WaitForNotificationWithTimeout(kLong)) {
      return absl::InternalError("the sink did not end");
    }
    return outcome->status;
  }
  bool TargetUntouched() const {
    return std::all_of(
        target_.begin(), target_.end(), [](std::byte byte) { return byte == std::byte{0xee}; });
  }

  const kernels::DensePageLayout page_{.page_tokens = 4, .kv_heads = 2, .head_dim = 8};
  int64_t segment_bytes_ = 3 * 512 * 4;
  kv::v1::KvLayout layout_;         // of the workers
  kv::v1::KvLayout prompt_layout_;  // of the prompt; dense unless a test changes it before Reserve
  // Pages of hidden states behind the layers that are shipped.
  int64_t hidden_pages_ = 0;
  // What an encoded format would say of its state, and the state that goes with a commit.
  std::function<absl::StatusOr<std::vector<int32_t>>(std::string_view)> sent_pages_;
  std::string kv_state_;
  std::vector<std::byte> source_;
  std::vector<std::byte> target_;
  std::unique_ptr<transport::TransportPair> pair_;
  transport::FaultyTransport faulty_;
  FakeEngine engine_;
  std::unique_ptr<Landing> landing_;
  InProcessHandshake handshake_;
  std::unique_ptr<Sender> sender_;
};

}  // namespace baton::handoff
