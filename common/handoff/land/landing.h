// Receives the KV of prefilled sequences into reserved pages (architecture.md 3, steps 4 and 7).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/handoff/land/landing_session.h"
#include "common/transport/transport.h"
#include "proto/baton/kv/v1/manifest.pb.h"
#include "proto/baton/worker/v1/decode.pb.h"
#include "proto/baton/worker/v1/kv_transfer.pb.h"

namespace baton::handoff {

class LandingCore;

struct LandingOptions {
  // Segments of one attempt; also bounds the messages that wait while the engine looks at the
  // attempt.
  int32_t max_segments = 1 << 14;
};

// One per decode worker. Owns a progress thread per transport (no one else may call Poll on them);
// these threads also compare checksums. Thread-safe. The engine must be stopped, and every
// session's stream ended, before it is destroyed.
class Landing : public engine::ReservationObserver {
 public:
  // `transports`, preferred first, are borrowed. `layout` is this worker's.
  Landing(std::vector<transport::Transport*> transports,
          kv::v1::KvLayout layout,
          LandingOptions options);
  ~Landing() override;
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;

  // Before serving: the engine that grants and commits. Borrowed.
  void set_engine(engine::Engine* engine);

  // Answers KvTransfer.Handshake: kFailedPrecondition (LAYOUT_MISMATCH) names the first field that
  // differs, or tensor-parallel ranks that KV can't come from.
  absl::StatusOr<worker::v1::HandshakeResponse> Handshake(
      const worker::v1::HandshakeRequest& request) const;

  // Registers a window of the granted pages with each transport and returns the endpoints for
  // `Reserved`. Must be called inside the engine's `granted` callback, so that the reservation
  // can't be released meanwhile. `layout` is the prompt's (this worker's own for `dense`).
  absl::StatusOr<std::vector<worker::v1::TransportEndpoint>> Open(
      const engine::ReservationGrant& grant, const kv::v1::KvLayout& layout);

  // Withdraws the windows: when it returns nothing from outside reaches the pages and nothing here
  // reads them. An unknown id is ignored.
  void OnReservationReleased(uint64_t reservation_id) override;

  // One Transfer stream begins.
  std::shared_ptr<LandingSession> StartSession(std::shared_ptr<LandingResponder> responder);

  // Reservations whose windows are open; for tests and gauges.
  int64_t open_reservations() const;

 private:
  const std::shared_ptr<LandingCore> core_;
  const kv::v1::KvLayout layout_;
};

}  // namespace baton::handoff
