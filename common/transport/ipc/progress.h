// What the progress thread of an ipc transport owns: listener, connections, and the loop over them.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/transport/inbox.h"
#include "common/transport/ipc/channel.h"
#include "common/transport/ipc/inbound_peer.h"
#include "common/transport/ipc/ipc_transport.h"
#include "common/transport/ipc/outbound_peer.h"
#include "common/transport/outbound_posts.h"
#include "common/transport/threaded_transport.h"
#include "common/transport/transport.h"
#include "common/transport/window_table.h"

namespace baton::transport::ipc {

// Made and run by the progress thread alone, Listen excepted.
class Progress final : public PostProgress {
 public:
  // Connections of peers that may be open.
  static constexpr size_t kMaxInboundPeers = 1024;

  Progress(const IpcTransportOptions& options,
           std::shared_ptr<Inbox> inbox,
           std::shared_ptr<WindowTable> windows,
           OutboundPosts::OnCompletion completed);

  // Before Run.
  absl::Status ListenAt(const std::string& socket);

  void Run() override;
  // Calls of the inbox.
  void Connect(const std::shared_ptr<ConnectCall>& call, const std::string& socket);
  void Post(uint64_t connection, PostParams params) override;
  void Cancel(uint64_t tag) override;
  void CancelAll() override;
  void Stop() override { stopping_ = true; }

 private:
  struct Outbound {
    std::unique_ptr<OutboundPeer> peer;
    std::shared_ptr<ConnectCall> call;  // until it is answered
    std::weak_ptr<PeerConnection> connection;
  };

  void CloseOutbound(uint64_t connection, const absl::Status& reason);
  void AcceptPeers();
  void AdvanceInbound();
  void AdvanceOutbound();
  void AnswerConnect(uint64_t id, Outbound& outbound);
  // Until there is something to do, or `next`.
  void Wait(absl::Time next);

  const IpcTransportOptions options_;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<WindowTable> windows_;
  const OutboundPosts::OnCompletion completed_;
  Descriptor listener_;
  uint64_t next_connection_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<InboundPeer>> inbound_;
  std::unordered_map<uint64_t, Outbound> outbound_;
  absl::Time next_look_ = absl::InfiniteFuture();
  std::vector<pollfd> polled_;
  bool stopping_ = false;
};

}  // namespace baton::transport::ipc
