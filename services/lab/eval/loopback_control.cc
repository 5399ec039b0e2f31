#include "services/lab/eval/loopback_control.h"

#include <utility>

namespace baton::lab {

LoopbackControlStream::~LoopbackControlStream() { Cancel(); }

void LoopbackControlStream::Start(std::shared_ptr<handoff::ControlStreamEvents> events) {
  responder_ = std::make_shared<Responder>(std::move(events));
  session_ = landing_.StartSession(responder_);
}

void LoopbackControlStream::Send(worker::v1::TransferRequest message) {
  session_->OnMessage(message);
}

void LoopbackControlStream::Cancel() {
  if (responder_ != nullptr) {
    session_->OnClosed();
    responder_->Close(absl::CancelledError("the stream was cancelled"));
  }
}

void LoopbackControlStream::Responder::Send(worker::v1::TransferResponse message) {
  std::shared_ptr<handoff::ControlStreamEvents> events;
  {
    absl::MutexLock lock(&mutex_);
    events = events_;
  }
  if (events != nullptr) {
    events->OnMessage(message);
  }
}

void LoopbackControlStream::Responder::Close(const absl::Status& status) {
  std::shared_ptr<handoff::ControlStreamEvents> events;
  {
    absl::MutexLock lock(&mutex_);
    events = std::exchange(events_, nullptr);
  }
  if (events != nullptr) {
    events->OnClosed(status);
  }
}

}  // namespace baton::lab
