// The control stream of one transfer attempt, as the sending side sees it.
#pragma once

#include <memory>

#include "absl/status/status.h"

#include "proto/baton/worker/v1/kv_transfer.pb.h"

namespace baton::handoff {

// Told what comes back on a control stream; calls come one at a time, from any thread. Also called
// from inside Start, Send or Cancel by a stream that lives in the same process.
class ControlStreamEvents {
 public:
  virtual ~ControlStreamEvents() = default;
  virtual void OnMessage(const worker::v1::TransferResponse& message) = 0;
  // The last event, once after Start: how the stream ended. OK without `committed` before it is a
  // failure.
  virtual void OnClosed(const absl::Status& status) = 0;
};

// KvTransfer.Transfer of one attempt. The service implements it over gRPC, the lab in process.
// Thread-safe; nothing blocks. Destroying a stream cancels it if it is still open; the events
// object is shared because events may still arrive then. It is never destroyed inside an event.
class ControlStream {
 public:
  virtual ~ControlStream() = default;
  // Called once, before anything else.
  virtual void Start(std::shared_ptr<ControlStreamEvents> events) = 0;
  // Queued in order; after the stream has ended it is dropped. The sender bounds the number of
  // messages (a manifest, its segments' headers, a commit).
  virtual void Send(worker::v1::TransferRequest message) = 0;
  // Ends the stream; OnClosed follows.
  virtual void Cancel() = 0;
};

}  // namespace baton::handoff
