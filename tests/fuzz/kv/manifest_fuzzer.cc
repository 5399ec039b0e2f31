// Any bytes as the messages of a transfer: each piece, preceded by its length in two bytes, is
// parsed as a TransferRequest and given to a landing session whose reservation exists. Identifiers
// and the checksums of headers are made right in half of the inputs, so that the checks behind them
// run too. Nothing may be committed, because no payload ever comes, and no write may leave the
// window.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/engine/request.h"
#include "common/handoff/land/landing.h"
#include "common/handoff/land/landing_session.h"
#include "common/kv/manifest/layout.h"
#include "common/kv/manifest/segment_header.h"
#include "common/transport/loopback/loopback_transport.h"
#include "tests/unit/handoff/fake_engine.h"

namespace {

using baton::worker::v1::TransferRequest;

constexpr uint64_t kReservation = 1;
constexpr uint64_t kEpoch = 2;
constexpr int32_t kLayers = 2;
constexpr int64_t kPromptTokens = 10;
constexpr size_t kMaxMessages = 64;

class IgnoreAnswers : public baton::handoff::LandingResponder {
 public:
  void Send(baton::worker::v1::TransferResponse /*message*/) override {}
  void Finish(absl::Status /*status*/) override {}
};

// One decode worker for all inputs.
struct Worker {
  Worker()
      : layout(baton::kv::DenseLayout(3, kLayers, page)),
        landing({&transport}, layout, baton::handoff::LandingOptions{.max_segments = 16}) {
    landing.set_engine(&engine);
    memory.resize(static_cast<size_t>(kLayers * page.pages_for(kPromptTokens)) * page.page_bytes());
  }

  void Reserve() {
    baton::engine::ReservationGrant grant;
    grant.reservation_id = kReservation;
    grant.epoch = kEpoch;
    grant.prompt_tokens = kPromptTokens;
    grant.pages_per_layer = page.pages_for(kPromptTokens);
    for (size_t at = 0; at < memory.size(); at += page.page_bytes()) {
      grant.memory.push_back(std::span(memory).subspan(at, page.page_bytes()));
    }
    engine.Grant(kReservation, kEpoch);
    if (!landing.Open(grant, layout).ok()) {
      std::abort();
    }
  }

  baton::kernels::DensePageLayout page{.page_tokens = 4, .kv_heads = 2, .head_dim = 2};
  baton::kv::v1::KvLayout layout;
  baton::transport::LoopbackTransport transport{
      std::make_shared<baton::transport::LoopbackNetwork>(), {.name = "decode"}};
  baton::handoff::FakeEngine engine;
  baton::handoff::Landing landing;
  std::vector<std::byte> memory;
};

// Makes what a fuzzer can't guess right: identity, layout, and a header's checksum.
void Repair(const Worker& worker, TransferRequest& message) {
  if (message.has_manifest()) {
    baton::kv::v1::KvManifest& manifest = *message.mutable_manifest();
    manifest.set_reservation_id(kReservation);
    manifest.set_epoch(kEpoch);
    *manifest.mutable_layout() = worker.layout;
    manifest.set_transport("loopback");
    manifest.set_segment_header_version(baton::kv::SegmentHeader::kVersion);
    manifest.set_prompt_tokens(kPromptTokens);
    manifest.set_attempt(1);
  } else if (message.segment_header().size() >= 64) {
    // The fields as the fuzzer has them, at their places in the header.
    const std::string& raw = message.segment_header();
    const auto at = [&raw](size_t i) { return static_cast<uint8_t>(raw[i]); };
    baton::kv::SegmentHeader header;
    header.reservation_id = kReservation;
    header.epoch = kEpoch;
    header.attempt = 1;
    header.segment_index = at(28);
    header.layer_begin = at(32);
    header.layer_count = static_cast<uint16_t>(at(34) | at(35) << 8);
    header.head_begin = at(36);
    header.head_count = at(38);
    header.page_begin = static_cast<uint32_t>(at(40) | at(43) << 24);
    header.page_count = static_cast<uint32_t>(at(44) | at(47) << 24);
    if (at(48) >= 1 && at(48) <= 4) {
      header.format = static_cast<baton::kv::WireFormat>(at(48));
    }
    header.head_total = at(54);
    header.payload_bytes = static_cast<uint64_t>(at(56) | at(57) << 8);
    const auto bytes = baton::kv::EncodeSegmentHeader(header);
    message.set_segment_header(bytes.data(), bytes.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Worker& worker = *new Worker();
  if (size == 0) {
    return 0;
  }
  const bool repair = (data[0] & 1) != 0;
  std::span<const uint8_t> rest(data + 1, size - 1);
  worker.Reserve();
  const auto session = worker.landing.StartSession(std::make_shared<IgnoreAnswers>());
  for (size_t i = 0; i < kMaxMessages && rest.size() >= 2; ++i) {
    const size_t length =
        std::min<size_t>(static_cast<size_t>(rest[0] | rest[1] << 8), rest.size() - 2);
    TransferRequest message;
    if (message.ParseFromArray(rest.data() + 2, static_cast<int>(length))) {
      if (repair) {
        Repair(worker, message);
      }
      session->OnMessage(message);
    }
    rest = rest.subspan(2 + length);
  }
  session->OnClosed();
  worker.landing.OnReservationReleased(kReservation);
  if (!worker.engine.committed().empty()) {
    std::abort();
  }
  return 0;
}
