// What the progress thread of an nccl transport owns: peers of both directions, and the loop over
// them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"

#include "common/base/live_counter.h"
#include "common/transport/inbox.h"
#include "common/transport/nccl/block_budget.h"
#include "common/transport/nccl/inbound_peer.h"
#include "common/transport/nccl/outbound_peer.h"
#include "common/transport/nccl/pipe.h"
#include "common/transport/outbound_posts.h"
#include "common/transport/outbound_table.h"
#include "common/transport/threaded_transport.h"
#include "common/transport/transport.h"
#include "common/transport/window_table.h"
#include "kernels/core/device_link.h"
#include "kernels/core/landing_memory.h"

namespace baton::transport::nccl {

struct ProgressOptions {
  kernels::DeviceLinks& links;
  kernels::LandingMemory* memory;  // null: nothing is received
  kernels::LinkSizes sizes;
  int32_t block_budget;  // of links that transfer at once
  size_t max_inbound_peers;
  absl::Duration idle_before_close;
  absl::Duration connect_timeout;
};

// Made and run by the progress thread alone, NewId and ToInbound excepted.
class Progress final : public PostProgress {
 public:
  Progress(const ProgressOptions& options,
           std::shared_ptr<Inbox> inbox,
           std::shared_ptr<WindowTable> windows,
           OutboundPosts::OnCompletion completed);

  // Of a connection, in either direction. Thread-safe.
  uint64_t NewId() { return next_connection_++; }
  // Brings a stream's messages to the peer. Thread-safe.
  Pipe::OnMessage ToInbound(uint64_t id);

  void Run() override;
  // Calls of the inbox.
  void Connect(const std::shared_ptr<ConnectCall>& call,
               const std::shared_ptr<grpc::Channel>& channel);
  void Accept(uint64_t id, std::shared_ptr<Pipe> pipe);
  void Drain() { draining_ = true; }
  void Post(uint64_t connection, PostParams params) override {
    outbound_.Post(connection, std::move(params));
  }
  void Cancel(uint64_t tag) override { outbound_.Cancel(tag); }
  void CancelAll() override { outbound_.CancelAll(); }
  void Stop() override { stopping_ = true; }

 private:
  // Whether another peer may connect; ends the link that has been idle longest, and for long
  // enough, where that is needed.
  bool HasRoom();
  void TakeInbound(uint64_t id, const std::optional<worker::v1::LinkMessage>& message);
  void TakeOutbound(uint64_t id, const std::optional<worker::v1::LinkMessage>& message);
  absl::StatusOr<std::unique_ptr<OutboundPeer>> OpenOutbound(
      uint64_t id, const std::shared_ptr<grpc::Channel>& channel);
  void CloseInbound(uint64_t id, const absl::Status& reason);
  void AdvanceInbound();
  void AdvanceOutbound();
  // kUnavailable when it has not connected in time.
  absl::Status CheckConnected(bool connected, absl::Time since);
  // Until there is something to do.
  void Wait();

  const ProgressOptions options_;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<WindowTable> windows_;
  const OutboundPosts::OnCompletion completed_;
  BlockBudget budget_;
  std::atomic<uint64_t> next_connection_{1};
  LiveCounter pipes_;  // to peers, until gRPC has let go of them
  std::unordered_map<uint64_t, std::unique_ptr<InboundPeer>> inbound_;
  OutboundTable<OutboundPeer> outbound_;
  absl::Time next_look_ = absl::InfiniteFuture();
  bool draining_ = false;
  bool stopping_ = false;
};

}  // namespace baton::transport::nccl
