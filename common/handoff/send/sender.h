// Ships the KV of prefilled sequences to decode workers (architecture.md 3, steps 4 and 6).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/engine/kv_sink.h"
#include "common/handoff/send/control_stream.h"
#include "common/handoff/send/handshake_client.h"
#include "common/kv/manifest/layout.h"
#include "common/transport/transport.h"
#include "proto/baton/kv/v1/manifest.pb.h"
#include "proto/baton/worker/v1/decode.pb.h"

namespace baton::handoff {

class SenderCore;

struct SenderOptions {
  // Layers are grouped until a segment has this many bytes, where one prefill chunk of the prompt
  // has that many; a smaller one ships every LayersReady call as it comes. Four of them may be on
  // their way for one transfer. 0: both by the link's rate (link_rate.h).
  int64_t segment_bytes = 0;
  // Transfers that may be open; a sink beyond this fails with kResourceExhausted.
  int32_t max_open_transfers = 4096;
  // LayersReady calls of one transfer that may wait to be shipped.
  int32_t max_waiting_groups = 1 << 16;
  // A transfer fails when decode has neither committed nor taken a segment for this long after
  // Commit: with kUnavailable, since the request has time left and another worker may be sooner.
  absl::Duration commit_timeout = absl::Seconds(60);
};

// How a transfer went; for metrics and the request's accounting.
struct TransferReport {
  std::string request_id;
  absl::Status status;
  std::string carrier;  // what really carried the bytes, "grpc"; empty when nothing was connected
  int64_t payload_bytes = 0;
  int64_t wire_bytes = 0;  // payload, segment headers and manifest
  int64_t segments = 0;
  absl::Duration duration;  // Open until done
};

struct OutgoingTransfer {
  std::string request_id{};
  worker::v1::Reserved reserved{};  // as decode granted it
  uint32_t attempt = 1;
  int64_t prompt_tokens = 0;
  kv::v1::KvLayout layout{};  // of the pages that the engine will hand over
  kv::WindowPages pages{};
  absl::Time deadline = absl::InfiniteFuture();
  // Called once, from any thread, just before Commit's `done` or Abort's `released`. May be empty.
  std::function<void(const TransferReport&)> report{};
  // Called at most once, from any thread and also inside Open, when the transfer has failed before
  // Commit and Abort: nobody takes what is still to be computed. May be empty.
  std::function<void(const absl::Status&)> failed_early{};
};

// One per prefill worker. Owns a progress thread per transport (no one else may call Poll on them)
// and one shipping thread that computes checksums, sends headers and posts. Thread-safe. The
// destructor fails what is still open (kUnavailable) and waits until no page is read any more.
class Sender {
 public:
  // `transports`, preferred first, and `handshake` are borrowed. `layout` is this worker's.
  Sender(std::vector<transport::Transport*> transports,
         HandshakeClient* handshake,
         kv::v1::KvLayout layout,
         SenderOptions options);
  ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  // Handshakes with a decode worker and connects to it ahead of its first request. Returns at once.
  void Warm(const std::string& control_address);

  // Starts a transfer: connects to the peer and sends the manifest while the prompt computes. An
  // error is remembered and reported by the sink's Commit. `control` must not have been started.
  std::unique_ptr<engine::KvSink> Open(OutgoingTransfer transfer,
                                       std::unique_ptr<ControlStream> control);

 private:
  const std::shared_ptr<SenderCore> core_;
};

}  // namespace baton::handoff
