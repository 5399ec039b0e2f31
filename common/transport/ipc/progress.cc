#include "common/transport/ipc/progress.h"

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

#include "common/base/status_macros.h"
#include "common/transport/inbox.h"
#include "common/transport/ipc/channel.h"
#include "common/transport/ipc/inbound_peer.h"
#include "common/transport/ipc/ipc_transport.h"
#include "common/transport/ipc/listener.h"
#include "common/transport/ipc/outbound_peer.h"
#include "common/transport/outbound_posts.h"
#include "common/transport/threaded_transport.h"
#include "common/transport/window_table.h"

namespace baton::transport::ipc {
namespace {

// Between tries to accept a connection for which there is no descriptor: the listener stays
// readable meanwhile, and would be looked at without end.
constexpr absl::Duration kAcceptPause = absl::Seconds(1);

absl::Status Lost(const absl::Status& reason) {
  return absl::UnavailableError(
      absl::StrCat("the connection is lost: ", std::string(reason.message())));
}

}  // namespace

Progress::Progress(const IpcTransportOptions& options,
                   std::shared_ptr<Inbox> inbox,
                   std::shared_ptr<WindowTable> windows,
                   OutboundPosts::OnCompletion completed)
    : options_(options),
      inbox_(std::move(inbox)),
      windows_(std::move(windows)),
      completed_(std::move(completed)),
      outbound_(inbox_, completed_) {}

absl::Status Progress::ListenAt(const std::string& socket) {
  BATON_ASSIGN_OR_RETURN(listener_, Listen(socket));
  return absl::OkStatus();
}

void Progress::Run() {
  for (;;) {
    for (const Inbox::Work& work : inbox_->Take()) {
      work();
    }
    if (stopping_) {
      break;
    }
    next_look_ = absl::InfiniteFuture();
    AcceptPeers();
    AdvanceInbound();
    AdvanceOutbound();
    Wait(next_look_);
  }
  inbound_.clear();
  outbound_.CloseAll(absl::CancelledError("the transport is ending"));
}

void Progress::Wait(absl::Time next) {
  polled_.assign(1, {.fd = inbox_->fd(), .events = POLLIN, .revents = 0});
  if (accepts()) {
    polled_.push_back({.fd = listener_.get(), .events = POLLIN, .revents = 0});
  }
  const auto add = [this](const Channel& channel, bool sends) {
    const auto events = static_cast<short>(sends ? POLLIN | POLLOUT : POLLIN);
    polled_.push_back({.fd = channel.fd(), .events = events, .revents = 0});
  };
  for (const auto& [id, peer] : inbound_) {
    add(peer->channel(), !peer->channel().idle());
  }
  for (const auto& [id, outbound] : outbound_.entries()) {
    add(outbound.peer->channel(), outbound.peer->wants_to_send());
  }
  // A day at most, so that the time fits.
  const absl::Duration time = std::clamp(next - absl::Now(), absl::ZeroDuration(), absl::Hours(24));
  const auto timeout = absl::ToTimespec(time);
  ppoll(polled_.data(), polled_.size(), &timeout, nullptr);
}

bool Progress::accepts() const {
  return listener_.get() >= 0 && inbound_.size() < kMaxInboundPeers && absl::Now() >= accept_again_;
}

void Progress::AcceptPeers() {
  while (accepts()) {
    absl::StatusOr<Descriptor> socket = Accept(listener_);
    if (absl::IsResourceExhausted(socket.status())) {
      spdlog::warn("ipc: a peer waits to connect: {}", std::string(socket.status().message()));
      accept_again_ = absl::Now() + kAcceptPause;
    }
    if (!socket.ok()) {
      break;
    }
    const uint64_t id = next_connection_++;
    const auto on_ready = [this, id, inbox = inbox_](uint64_t post, absl::Status verdict) {
      inbox->Push([this, id, post, verdict = std::move(verdict)] {
        if (const auto found = inbound_.find(id); found != inbound_.end()) {
          found->second->Ready(post, verdict);
        }
      });
    };
    inbound_.emplace(
        id, std::make_unique<InboundPeer>(*std::move(socket), windows_, options_.device, on_ready));
  }
  if (absl::Now() < accept_again_) {
    next_look_ = std::min(next_look_, accept_again_);
  }
}

// One message of each, so that all have their turn.
void Progress::AdvanceInbound() {
  const absl::Time now = absl::Now();
  for (auto entry = inbound_.begin(); entry != inbound_.end();) {
    InboundPeer& peer = *entry->second;
    const absl::Time introduced_by = peer.since() + options_.connect_timeout;
    peer.channel().Flush();
    if (!peer.Advance().ok() || (!peer.introduced() && now > introduced_by)) {
      entry = inbound_.erase(entry);
      continue;
    }
    if (!peer.introduced()) {
      next_look_ = std::min(next_look_, introduced_by + absl::Milliseconds(1));
    }
    ++entry;
  }
}

void Progress::Connect(const std::shared_ptr<ConnectCall>& call, const std::string& socket) {
  absl::StatusOr<Descriptor> connected = Dial(socket);
  if (stopping_ || !connected.ok()) {
    call->Answer(stopping_ ? absl::CancelledError("the transport is ending") : connected.status());
    return;
  }
  outbound_.Add(
      next_connection_++, std::make_unique<OutboundPeer>(*std::move(connected), completed_), call);
}

void Progress::AdvanceOutbound() {
  const absl::Time now = absl::Now();
  std::vector<std::pair<uint64_t, absl::Status>> lost;
  for (auto& [id, outbound] : outbound_.entries()) {
    OutboundPeer& peer = *outbound.peer;
    absl::Status status = peer.posts().EndOverdue(now, next_look_);
    status.Update(peer.Advance());
    if (outbound.call != nullptr && status.ok()) {
      const absl::Time by = peer.since() + options_.connect_timeout;
      if (peer.welcomed()) {
        outbound_.Answer(id, peer.reads_devices() ? "ipc/device" : "ipc", peer.reads_devices());
      } else if (now > by) {
        status = absl::UnavailableError(
            absl::StrCat("no answer within ", absl::FormatDuration(options_.connect_timeout)));
      } else {
        next_look_ = std::min(next_look_, by + absl::Milliseconds(1));
      }
    }
    if (!status.ok()) {
      lost.emplace_back(id, Lost(status));
    }
  }
  for (const auto& [id, status] : lost) {
    outbound_.Close(id, status);
  }
}

}  // namespace baton::transport::ipc
