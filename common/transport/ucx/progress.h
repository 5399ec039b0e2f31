// What the progress thread of a UCX transport owns: worker, connections, and the loop over them.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/transport/inbox.h"
#include "common/transport/threaded_transport.h"
#include "common/transport/transport.h"
#include "common/transport/ucx/inbound_peer.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/outbound_peer.h"
#include "common/transport/ucx/peer_list.h"
#include "common/transport/ucx/preflight.h"
#include "common/transport/ucx/ucx_transport.h"
#include "common/transport/ucx/ucx_worker.h"
#include "common/transport/window_table.h"

namespace baton::transport::ucx {

// Made and run by the progress thread alone, stats() excepted.
class Progress final : public PostProgress {
 public:
  // Connections of peers that may be open, those refused soon included.
  static constexpr size_t kMaxInboundPeers = 1024;

  Progress(const UcxTransportOptions& options,
           std::shared_ptr<Inbox> inbox,
           std::shared_ptr<WindowTable> windows,
           OutboundPeer::OnCompletion completed);

  // Returns the port that it listens at; 0 without a listener.
  absl::StatusOr<uint16_t> Bring();
  void Run() override;

  // Calls of the inbox.
  void Connect(const std::shared_ptr<ConnectCall>& call, const sockaddr_storage& peer);
  void CloseOutbound(uint64_t connection);
  void Post(uint64_t connection, PostParams params) override;
  void Cancel(uint64_t tag) override;
  void CancelAll() override;
  void Stop() override;

  UcxStats stats() const;

 private:
  struct Outbound {
    std::unique_ptr<OutboundPeer> peer;
    std::unique_ptr<Preflight> preflight;  // while it goes on
    std::shared_ptr<ConnectCall> call;     // until it is answered
    std::weak_ptr<PeerConnection> connection;
  };
  struct Arrived {
    ucp_ep_h endpoint = nullptr;
    Message message;
  };

  void OnConnection(ucp_conn_request_h request, const sockaddr_storage& peer);
  bool HandleArrived();
  void Handle(const Arrived& arrived);
  void HandleHello(ucp_ep_h endpoint, const Hello& hello);
  void HandleOutbound(Outbound& outbound, uint64_t id, const Message& message);
  absl::StatusOr<std::unique_ptr<LandingSlots>> SlotsFor(InboundPeer& peer);
  absl::StatusOr<std::unique_ptr<LandingSlots>> MapSlots();
  std::unique_ptr<LandingSlots> SlotsOfMessages() const;
  // The peer has welcomed this side.
  void Admit(Outbound& outbound, uint64_t id);
  void AdvancePreflight(Outbound& outbound, uint64_t id, absl::Time now);
  void AnswerConnect(Outbound& outbound, uint64_t id);
  void CloseOutbound(Outbound& outbound, const absl::Status& reason);
  // Ends what is lost or overdue; returns when to look again.
  absl::Time Sweep(absl::Time now);
  absl::Time SweepInbound(absl::Time now);
  absl::Time SweepOutbound(absl::Time now);

  const UcxTransportOptions options_;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<WindowTable> windows_;
  const OutboundPeer::OnCompletion completed_;
  PeerList allowed_;
  std::unique_ptr<UcxWorker> worker_;
  uint64_t next_connection_ = 0;
  std::vector<Arrived> arrived_;
  std::unordered_map<uint64_t, std::unique_ptr<InboundPeer>> inbound_;
  std::unordered_map<uint64_t, Outbound> outbound_;
  bool stopping_ = false;

  mutable absl::Mutex mutex_;
  UcxStats stats_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> carriers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::transport::ucx
