#include "common/transport/nccl/progress.h"

#include <poll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "spdlog/spdlog.h"

#include "common/base/status_macros.h"
#include "common/transport/inbox.h"
#include "common/transport/nccl/client_pipe.h"
#include "common/transport/nccl/inbound_peer.h"
#include "common/transport/nccl/outbound_peer.h"
#include "common/transport/nccl/pipe.h"
#include "common/transport/outbound_posts.h"
#include "common/transport/threaded_transport.h"
#include "common/transport/window_table.h"
#include "kernels/core/device_link.h"
#include "proto/baton/worker/v1/kv_link.pb.h"

namespace baton::transport::nccl {
namespace {

// Devices do not say when they are done; a chunk takes a tenth of a millisecond and more.
constexpr absl::Duration kBusyLook = absl::Microseconds(20);
// Pairs that connect, and streams that are to end, have more time.
constexpr absl::Duration kSlowLook = absl::Milliseconds(1);
// Streams end soon after they were cancelled.
constexpr absl::Duration kPipeEndTimeout = absl::Seconds(10);

absl::Status Lost(const absl::Status& reason) {
  return absl::UnavailableError(
      absl::StrCat("the connection is lost: ", std::string(reason.message())));
}

}  // namespace

Progress::Progress(const ProgressOptions& options,
                   std::shared_ptr<Inbox> inbox,
                   std::shared_ptr<WindowTable> windows,
                   OutboundPosts::OnCompletion completed)
    : options_(options),
      inbox_(std::move(inbox)),
      windows_(std::move(windows)),
      completed_(std::move(completed)),
      budget_(options.block_budget),
      outbound_(inbox_, completed_) {}

void Progress::Run() {
  prctl(PR_SET_TIMERSLACK, 1);  // looks are as often as they say
  for (;;) {
    for (const Inbox::Work& work : inbox_->Take()) {
      work();
    }
    if (stopping_) {
      break;
    }
    next_look_ = absl::InfiniteFuture();
    AdvanceInbound();
    AdvanceOutbound();
    Wait();
  }
  const absl::Status reason = absl::CancelledError("the transport is ending");
  while (!inbound_.empty()) {
    CloseInbound(inbound_.begin()->first, reason);
  }
  outbound_.CloseAll(reason);
  pipes_.WaitForNone(kPipeEndTimeout);
}

void Progress::Wait() {
  pollfd polled = {.fd = inbox_->fd(), .events = POLLIN, .revents = 0};
  // A day at most, so that the time fits.
  const absl::Duration time =
      std::clamp(next_look_ - absl::Now(), absl::ZeroDuration(), absl::Hours(24));
  const timespec timeout = absl::ToTimespec(time);
  ppoll(&polled, 1, &timeout, nullptr);
}

Pipe::OnMessage Progress::ToInbound(uint64_t id) {
  return [this, id, inbox = inbox_](std::optional<worker::v1::LinkMessage> message) {
    inbox->Push([this, id, message = std::move(message)] { TakeInbound(id, message); });
  };
}

void Progress::Accept(uint64_t id, std::shared_ptr<Pipe> pipe) {
  if (stopping_ || draining_ || options_.memory == nullptr || !HasRoom()) {
    pipe->Close();
    return;
  }
  const auto on_ready = [this, id, inbox = inbox_](uint64_t post, absl::Status verdict) {
    inbox->Push([this, id, post, verdict = std::move(verdict)] {
      if (const auto found = inbound_.find(id); found != inbound_.end()) {
        found->second->Ready(post, verdict);
      }
    });
  };
  inbound_.emplace(
      id,
      std::make_unique<InboundPeer>(
          std::move(pipe), windows_, options_.links, *options_.memory, budget_, on_ready));
}

bool Progress::HasRoom() {
  if (inbound_.size() < options_.max_inbound_peers) {
    return true;
  }
  const auto idlest =
      std::min_element(inbound_.begin(), inbound_.end(), [](const auto& a, const auto& b) {
        return a.second->idle_since() < b.second->idle_since();
      });
  if (idlest == inbound_.end() ||
      absl::Now() - idlest->second->idle_since() < options_.idle_before_close) {
    return false;
  }
  CloseInbound(idlest->first, absl::CancelledError("another peer takes its place"));
  return true;
}

void Progress::TakeInbound(uint64_t id, const std::optional<worker::v1::LinkMessage>& message) {
  const auto found = inbound_.find(id);
  if (found == inbound_.end()) {
    return;
  }
  const absl::Status status = message.has_value() ? found->second->Take(*message)
                                                  : absl::UnavailableError("the stream has ended");
  if (!status.ok()) {
    CloseInbound(id, status);
  }
}

void Progress::TakeOutbound(uint64_t id, const std::optional<worker::v1::LinkMessage>& message) {
  OutboundPeer* const peer = outbound_.Find(id);
  if (peer == nullptr) {
    return;
  }
  const absl::Status status = message.has_value()
                                  ? peer->Take(*message)
                                  : absl::UnavailableError("the peer has ended the stream");
  if (!status.ok()) {
    outbound_.Close(id, Lost(status));
  }
}

void Progress::Connect(const std::shared_ptr<ConnectCall>& call,
                       const std::shared_ptr<grpc::Channel>& channel) {
  if (stopping_) {
    call->Answer(absl::CancelledError("the transport is ending"));
    return;
  }
  const uint64_t id = NewId();
  absl::StatusOr<std::unique_ptr<OutboundPeer>> peer = OpenOutbound(id, channel);
  if (!peer.ok()) {
    call->Answer(peer.status());
    return;
  }
  outbound_.Add(id, *std::move(peer), call);
}

absl::StatusOr<std::unique_ptr<OutboundPeer>> Progress::OpenOutbound(
    uint64_t id, const std::shared_ptr<grpc::Channel>& channel) {
  BATON_ASSIGN_OR_RETURN(const std::string pair, options_.links.NewId());
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<kernels::DeviceLink> link,
                         options_.links.Open(pair, kernels::LinkEnd::kSender, options_.sizes));
  const std::shared_ptr<Pipe> pipe = ClientPipe::Open(
      channel, pipes_, [this, id, inbox = inbox_](std::optional<worker::v1::LinkMessage> message) {
        inbox->Push([this, id, message = std::move(message)] { TakeOutbound(id, message); });
      });
  return std::make_unique<OutboundPeer>(
      pipe, std::move(link), pair, options_.sizes, budget_, completed_);
}

absl::Status Progress::CheckConnected(bool connected, absl::Time since) {
  if (connected) {
    return absl::OkStatus();
  }
  const absl::Time by = since + options_.connect_timeout;
  next_look_ = std::min(next_look_, by + kSlowLook);
  return absl::Now() <= by
             ? absl::OkStatus()
             : absl::UnavailableError(absl::StrCat("not connected within ",
                                                   absl::FormatDuration(options_.connect_timeout)));
}

void Progress::AdvanceInbound() {
  const absl::Time now = absl::Now();
  std::vector<std::pair<uint64_t, absl::Status>> lost;
  for (auto& [id, inbound] : inbound_) {
    InboundPeer& peer = *inbound;
    absl::Status status = peer.Advance(now);
    status.Update(CheckConnected(peer.connected(), peer.since()));
    if (status.ok() && draining_ && !peer.has_posts() && windows_->empty()) {
      status = absl::CancelledError("the worker is stopping");
    }
    if (!status.ok()) {
      lost.emplace_back(id, std::move(status));
    } else if (peer.busy() || draining_) {
      next_look_ =
          std::min(next_look_, now + (peer.connected() && peer.busy() ? kBusyLook : kSlowLook));
    }
  }
  for (const auto& [id, status] : lost) {
    CloseInbound(id, status);
  }
}

void Progress::AdvanceOutbound() {
  const absl::Time now = absl::Now();
  std::vector<std::pair<uint64_t, absl::Status>> lost;
  for (auto& [id, outbound] : outbound_.entries()) {
    OutboundPeer& peer = *outbound.peer;
    absl::Status status = peer.posts().EndOverdue(now, next_look_);
    status.Update(peer.Advance(now));
    status.Update(CheckConnected(peer.connected(), peer.since()));
    if (!status.ok()) {
      lost.emplace_back(id, Lost(status));
      continue;
    }
    if (outbound.call != nullptr && peer.connected()) {
      outbound_.Answer(id, "nccl", /*reads_devices=*/true);
    }
    if (peer.busy()) {
      next_look_ = std::min(next_look_, now + (peer.connected() ? kBusyLook : kSlowLook));
    }
  }
  for (const auto& [id, status] : lost) {
    outbound_.Close(id, status);
  }
}

void Progress::CloseInbound(uint64_t id, const absl::Status& reason) {
  if (!absl::IsUnavailable(reason) && !absl::IsCancelled(reason)) {
    spdlog::warn("a peer's link ends: {}", std::string(reason.message()));
  }
  inbound_.erase(id);
}

}  // namespace baton::transport::nccl
