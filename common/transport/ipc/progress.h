// What the progress thread of an ipc transport owns: listener, connections, and the loop over them.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/transport/inbox.h"
#include "common/transport/ipc/channel.h"
#include "common/transport/ipc/inbound_peer.h"
#include "common/transport/ipc/ipc_transport.h"
#include "common/transport/ipc/outbound_peer.h"
#include "common/transport/outbound_posts.h"
#include "common/transport/outbound_table.h"
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
  void Post(uint64_t connection, PostParams params) override {
    outbound_.Post(connection, std::move(params));
  }
  void Cancel(uint64_t tag) override { outbound_.Cancel(tag); }
  void CancelAll() override { outbound_.CancelAll(); }
  void Stop() override { stopping_ = true; }

 private:
  bool accepts() const;
  void AcceptPeers();
  void AdvanceInbound();
  void AdvanceOutbound();
  // Until there is something to do, or `next`.
  void Wait(absl::Time next);

  const IpcTransportOptions options_;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<WindowTable> windows_;
  const OutboundPosts::OnCompletion completed_;
  Descriptor listener_;
  uint64_t next_connection_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<InboundPeer>> inbound_;
  OutboundTable<OutboundPeer> outbound_;
  absl::Time accept_again_ = absl::InfinitePast();
  absl::Time next_look_ = absl::InfiniteFuture();
  std::vector<pollfd> polled_;
  bool stopping_ = false;
};

}  // namespace baton::transport::ipc
