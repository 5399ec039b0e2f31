// One control stream of a transfer, as the receiving side sees it.
#pragma once

#include "absl/status/status.h"

#include "proto/baton/worker/v1/kv_transfer.pb.h"

namespace baton::handoff {

// Sends the answers of a session; implemented by the service over gRPC, by the lab in process.
// Called one call at a time, from any thread; must not block.
class LandingResponder {
 public:
  virtual ~LandingResponder() = default;
  // Queued in order; at most two messages per session.
  virtual void Send(worker::v1::TransferResponse message) = 0;
  // Ends the stream. Called at most once (not at all after the peer ended it), and last.
  virtual void Finish(absl::Status status) = 0;
};

// Checks what a prefill worker says about a transfer and commits it. Any error ends the session and
// leaves the reservation to the next attempt. Thread-safe; OnMessage calls must come in the
// stream's order, one at a time.
class LandingSession {
 public:
  virtual ~LandingSession() = default;
  virtual void OnMessage(const worker::v1::TransferRequest& message) = 0;
  // The peer ended or cancelled the stream, or the connection broke. No answer is sent any more.
  virtual void OnClosed() = 0;
};

}  // namespace baton::handoff
