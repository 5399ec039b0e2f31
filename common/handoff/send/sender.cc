#include "common/handoff/send/sender.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "common/handoff/send/control_stream.h"
#include "common/handoff/send/handshake_client.h"
#include "common/handoff/send/outgoing_session.h"
#include "common/handoff/send/sender_core.h"
#include "common/transport/transport.h"

namespace baton::handoff {
namespace {

// The engine's handle of a session. Dropping it without Commit or Abort aborts. Commit and Abort
// hold the session themselves: its end may come while they are inside, from any thread, and whoever
// is called back may drop the sink, which can be the last to hold it.
class Sink : public engine::KvSink {
 public:
  explicit Sink(std::shared_ptr<OutgoingSession> session) : session_(std::move(session)) {}
  ~Sink() override {
    if (!ended_) {
      session_->Abort(absl::CancelledError("the sink was dropped"), [] {});
    }
  }

  bool reads_devices() override { return session_->ReadsDevices(); }
  void LayersReady(engine::ReadyKv ready) override { session_->LayersReady(std::move(ready)); }
  void Commit(engine::CommitInfo info,
              std::function<void(absl::Status status, int64_t wire_bytes)> done) override {
    ended_ = true;
    const std::shared_ptr<OutgoingSession> session = session_;
    session->Commit(std::move(info), std::move(done));
  }
  void Abort(absl::Status reason, std::function<void()> released) override {
    ended_ = true;
    const std::shared_ptr<OutgoingSession> session = session_;
    session->Abort(std::move(reason), std::move(released));
  }

 private:
  const std::shared_ptr<OutgoingSession> session_;
  bool ended_ = false;
};

}  // namespace

Sender::Sender(std::vector<transport::Transport*> transports,
               HandshakeClient* handshake,
               kv::v1::KvLayout layout,
               SenderOptions options)
    : core_(std::make_shared<SenderCore>(
          std::move(transports), handshake, std::move(layout), options)) {
  core_->StartThreads();
}

Sender::~Sender() { core_->Stop(); }

void Sender::Warm(const std::string& control_address) {
  core_->peers().Get(control_address, {}, [](const auto& /*peer*/) {});
}

std::unique_ptr<engine::KvSink> Sender::Open(OutgoingTransfer transfer,
                                             std::unique_ptr<ControlStream> control) {
  auto session = std::make_shared<OutgoingSession>(core_, std::move(transfer));
  if (absl::Status admitted = core_->Admit(session); admitted.ok()) {
    session->Start(std::move(control), core_->transports());
  } else {
    session->Fail(std::move(admitted));
  }
  return std::make_unique<Sink>(std::move(session));
}

}  // namespace baton::handoff
