// Control stream and handshake between a sender and a landing of the same process.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "common/handoff/land/landing.h"
#include "common/handoff/send/control_stream.h"
#include "common/handoff/send/handshake_client.h"

namespace baton::lab {

// Answers handshakes from a landing. Thread-safe; the landing is borrowed.
class LoopbackHandshake : public handoff::HandshakeClient {
 public:
  explicit LoopbackHandshake(const handoff::Landing& landing) : landing_(landing) {}
  absl::StatusOr<worker::v1::HandshakeResponse> Handshake(
      const std::string& /*control_address*/,
      const worker::v1::HandshakeRequest& request) override {
    return landing_.Handshake(request);
  }

 private:
  const handoff::Landing& landing_;
};

// Hands messages straight to a landing session and its answers straight back. The landing must
// outlive the stream.
class LoopbackControlStream : public handoff::ControlStream {
 public:
  explicit LoopbackControlStream(handoff::Landing& landing) : landing_(landing) {}
  ~LoopbackControlStream() override;

  void Start(std::shared_ptr<handoff::ControlStreamEvents> events) override;
  void Send(worker::v1::TransferRequest message) override;
  void Cancel() override;

 private:
  // Answers come from the landing's threads and may outlive the stream.
  class Responder : public handoff::LandingResponder {
   public:
    explicit Responder(std::shared_ptr<handoff::ControlStreamEvents> events)
        : events_(std::move(events)) {}
    void Send(worker::v1::TransferResponse message) override;
    void Finish(absl::Status status) override { Close(status); }
    // Reports the end once, whichever side ends first.
    void Close(const absl::Status& status);

   private:
    absl::Mutex mutex_;
    std::shared_ptr<handoff::ControlStreamEvents> events_ ABSL_GUARDED_BY(mutex_);
  };

  handoff::Landing& landing_;
  std::shared_ptr<Responder> responder_;
  std::shared_ptr<handoff::LandingSession> session_;
};

}  // namespace baton::lab
