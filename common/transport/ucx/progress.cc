#include "common/transport/ucx/progress.h"

#include <sys/random.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/transport/inbox.h"
#include "common/transport/threaded_transport.h"
#include "common/transport/transport.h"
#include "common/transport/ucx/carrier.h"
#include "common/transport/ucx/endpoint.h"
#include "common/transport/ucx/landing_slots.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/outbound_peer.h"
#include "common/transport/ucx/peer_list.h"
#include "common/transport/ucx/preflight.h"
#include "common/transport/ucx/ucx_transport.h"
#include "common/transport/ucx/ucx_worker.h"
#include "common/transport/window_table.h"

namespace baton::transport::ucx {
namespace {

// How often transfers that end elsewhere, and peers that are slow, are looked for.
constexpr absl::Duration kTick = absl::Milliseconds(20);
// Between the rounds in which an endpoint closes.
constexpr absl::Duration kClosingTick = absl::Milliseconds(1);
// The longest wait while there is a connection: not all of UCX's own work wakes its descriptor.
constexpr absl::Duration kIdleTick = absl::Milliseconds(100);
// Messages that a peer may leave untaken.
constexpr size_t kMaxOpenOperations = size_t{1} << 15;

absl::Status NoRdma(std::string_view carrier) {
  return absl::FailedPreconditionError(absl::StrCat(
      "--require_rdma is set and UCX selected ",
      std::string(carrier),
      ": check that both machines have an active InfiniBand or RoCE port (ucx_info -d shows rc or "
      "dc transports) that UCX_TLS and UCX_NET_DEVICES allow, or drop the flag"));
}

absl::Status Lost(const absl::Status& reason) {
  return absl::UnavailableError(
      absl::StrCat("the connection is lost: ", std::string(reason.message())));
}

}  // namespace

Progress::Progress(const UcxTransportOptions& options,
                   std::shared_ptr<Inbox> inbox,
                   std::shared_ptr<WindowTable> windows,
                   OutboundPeer::OnCompletion completed)
    : options_(options),
      inbox_(std::move(inbox)),
      windows_(std::move(windows)),
      completed_(std::move(completed)) {}

absl::StatusOr<uint16_t> Progress::Bring() {
  BATON_ASSIGN_OR_RETURN(allowed_, PeerList::Parse(options_.allowed_peers));
  // Numbers of an earlier process must not fit.
  if (getrandom(&next_connection_, sizeof(next_connection_), 0) !=
      static_cast<ssize_t>(sizeof(next_connection_))) {
    return absl::InternalError("the system gave no random bytes for connection numbers");
  }
  next_connection_ = (next_connection_ >> 1) + 1;
  UcxWorker::Handlers handlers;
  handlers.message = [this](ucp_ep_h endpoint, std::span<const std::byte> bytes) {
    if (absl::StatusOr<Message> message = DecodeMessage(bytes); message.ok()) {
      arrived_.push_back({endpoint, *std::move(message)});
    }
  };
  handlers.connection = [this](ucp_conn_request_h request, const sockaddr_storage& peer) {
    OnConnection(request, peer);
  };
  BATON_ASSIGN_OR_RETURN(worker_, UcxWorker::Make(std::move(handlers)));
  return options_.listen.empty() ? uint16_t{0} : worker_->Listen(options_.listen);
}

void Progress::Run() {
  const auto ended = [this] { return stopping_ && inbound_.empty() && outbound_.empty(); };
  while (!ended()) {
    bool active = false;
    for (const Inbox::Work& work : inbox_->Take()) {
      work();
      active = true;
    }
    while (worker_->Progress()) {
      active = true;
      HandleArrived();
    }
    active = HandleArrived() || active;
    const absl::Time next = Sweep(absl::Now());
    if (!active && !ended()) {
      worker_->Wait(inbox_->fd(), next);
    }
  }
  worker_.reset();
}

// --- Connections -----------------------------------------------------------------------------

void Progress::OnConnection(ucp_conn_request_h request, const sockaddr_storage& peer) {
  if (stopping_ || inbound_.size() >= kMaxInboundPeers || !allowed_.Admits(peer)) {
    worker_->Reject(request);
    return;
  }
  absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = Endpoint::Accept(*worker_, request);
  if (!endpoint.ok()) {
    return;  // the peer sees the end of its connection
  }
  const uint64_t id = next_connection_++;
  const auto on_ready = [this, inbox = inbox_](
                            uint64_t connection, uint64_t post, absl::Status verdict) {
    inbox->Push([this, connection, post, verdict = std::move(verdict)] {
      if (const auto found = inbound_.find(connection); found != inbound_.end()) {
        found->second->Ready(post, verdict);
      }
    });
  };
  inbound_.emplace(id, std::make_unique<InboundPeer>(id, *std::move(endpoint), windows_, on_ready));
}

void Progress::Connect(const std::shared_ptr<ConnectCall>& call, const sockaddr_storage& peer) {
  absl::StatusOr<std::unique_ptr<Endpoint>> endpoint = Endpoint::Connect(*worker_, peer);
  if (stopping_ || !endpoint.ok()) {
    call->Answer(stopping_ ? absl::CancelledError("the transport is ending") : endpoint.status());
    return;
  }
  const uint64_t id = next_connection_++;
  Outbound& outbound = outbound_[id];
  outbound.peer = std::make_unique<OutboundPeer>(id, *std::move(endpoint), completed_);
  outbound.call = call;
}

void Progress::Admit(Outbound& outbound, uint64_t id) {
  const std::string carrier = outbound.peer->endpoint().carrier();
  if (options_.require_rdma && !IsRdma(carrier)) {
    CloseOutbound(outbound, NoRdma(carrier));
  } else if (options_.bandwidth_floor > 0) {
    outbound.preflight = std::make_unique<Preflight>(*outbound.peer, options_.bandwidth_floor);
  } else {
    AnswerConnect(outbound, id);
  }
}

void Progress::AdvancePreflight(Outbound& outbound, uint64_t id, absl::Time now) {
  const std::optional<absl::Status> verdict = outbound.preflight->Advance(now);
  if (!verdict.has_value()) {
    return;
  }
  if (outbound.call != nullptr && verdict->ok()) {
    AnswerConnect(outbound, id);
  } else {
    CloseOutbound(outbound, *verdict);  // no harm where that has been done
  }
  outbound.preflight.reset();
}

void Progress::AnswerConnect(Outbound& outbound, uint64_t id) {
  const std::string carrier = outbound.peer->endpoint().carrier();
  auto connection = std::make_shared<PeerConnection>(
      id, carrier, [this, id, inbox = inbox_] { inbox->Push([this, id] { CloseOutbound(id); }); });
  outbound.connection = connection;
  outbound.call->Answer(std::move(connection));
  outbound.call.reset();
}

void Progress::CloseOutbound(uint64_t connection) {
  if (const auto found = outbound_.find(connection); found != outbound_.end()) {
    CloseOutbound(found->second, absl::CancelledError("the connection was closed"));
  }
}

void Progress::CloseOutbound(Outbound& outbound, const absl::Status& reason) {
  outbound.peer->Close(reason);
  if (outbound.call != nullptr) {
    outbound.call->Answer(reason);
    outbound.call.reset();
  }
  if (const auto connection = outbound.connection.lock()) {
    connection->set_lost();
  }
}

// --- Messages --------------------------------------------------------------------------------

bool Progress::HandleArrived() {
  const std::vector<Arrived> arrived = std::exchange(arrived_, {});
  for (const Arrived& one : arrived) {
    Handle(one);
  }
  return !arrived.empty();
}

// A message counts only on the connection that it names.
void Progress::Handle(const Arrived& arrived) {
  const Message& message = arrived.message;
  if (const auto* hello = std::get_if<Hello>(&message.body)) {
    HandleHello(arrived.endpoint, *hello);
    return;
  }
  const auto in = inbound_.find(message.connection);
  if (in != inbound_.end() && in->second->endpoint().handle() == arrived.endpoint) {
    if (const absl::Status status = in->second->Take(message); !status.ok()) {
      in->second->Close(Lost(status));
    }
    return;
  }
  const auto out = outbound_.find(message.connection);
  if (out != outbound_.end() && out->second.peer->endpoint().handle() == arrived.endpoint) {
    HandleOutbound(out->second, out->first, message);
  }
}

void Progress::HandleHello(ucp_ep_h endpoint, const Hello& hello) {
  const auto found = std::find_if(inbound_.begin(), inbound_.end(), [endpoint](const auto& entry) {
    return entry.second->endpoint().handle() == endpoint;
  });
  if (found == inbound_.end() || found->second->welcomed()) {
    return;
  }
  absl::StatusOr<std::unique_ptr<LandingSlots>> slots = SlotsFor(*found->second);
  if (slots.ok()) {
    found->second->Welcome(hello, *std::move(slots));
  } else {
    found->second->Refuse(hello, slots.status());
  }
}

absl::StatusOr<std::unique_ptr<LandingSlots>> Progress::SlotsFor(InboundPeer& peer) {
  const std::string carrier = peer.endpoint().carrier();
  if (options_.require_rdma && !IsRdma(carrier)) {
    return NoRdma(carrier);
  }
  {
    absl::MutexLock lock(&mutex_);
    carriers_.insert(carrier);
  }
  return IsRdma(carrier) || options_.put_without_rdma ? MapSlots() : SlotsOfMessages();
}

absl::StatusOr<std::unique_ptr<LandingSlots>> Progress::MapSlots() {
  const int64_t bytes = int64_t{options_.slot_bytes} * options_.slots_per_peer;
  const int64_t peers = std::count_if(inbound_.begin(), inbound_.end(), [](const auto& entry) {
    return entry.second->memory_bytes() > 0;
  });
  if ((peers + 1) * bytes > options_.arena_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(peers,
                     " peers have all landing slots of this worker; each takes ",
                     bytes,
                     " bytes of --ucx_arena_mib"));
  }
  return LandingSlots::Map(worker_->context(), options_.slot_bytes, options_.slots_per_peer);
}

// As many bytes as the slots of a peer that puts.
std::unique_ptr<LandingSlots> Progress::SlotsOfMessages() const {
  const uint32_t slot_bytes =
      std::min(options_.slot_bytes, static_cast<uint32_t>(kMaxCarriedBytes));
  const uint64_t slots = uint64_t{options_.slot_bytes} * options_.slots_per_peer / slot_bytes;
  return LandingSlots::WithoutMemory(slot_bytes,
                                     static_cast<uint16_t>(std::min<uint64_t>(slots, UINT16_MAX)));
}

void Progress::HandleOutbound(Outbound& outbound, uint64_t id, const Message& message) {
  const absl::Status status = outbound.peer->Take(message);
  if (!status.ok()) {
    CloseOutbound(outbound, outbound.call == nullptr ? Lost(status) : status);
  } else if (outbound.call != nullptr && std::holds_alternative<Welcome>(message.body)) {
    Admit(outbound, id);
  }
}

// --- Posts -----------------------------------------------------------------------------------

void Progress::Post(uint64_t connection, PostParams params) {
  const auto found = outbound_.find(connection);
  if (found == outbound_.end()) {
    completed_(Completion{.kind = CompletionKind::kSent,
                          .tag = params.tag,
                          .status = absl::UnavailableError("the connection is lost")});
    return;
  }
  found->second.peer->Start(std::move(params));
}

void Progress::Cancel(uint64_t tag) {
  for (auto& [id, outbound] : outbound_) {
    outbound.peer->Cancel(tag, absl::CancelledError("the post was cancelled"));
  }
}

void Progress::CancelAll() {
  for (auto& [id, outbound] : outbound_) {
    outbound.peer->CancelAll(absl::CancelledError("the transport was released"));
  }
}

void Progress::Stop() {
  stopping_ = true;
  worker_->StopListening();
  for (auto& [id, peer] : inbound_) {
    peer->Close(absl::UnavailableError("the transport is ending"));
  }
  for (auto& [id, outbound] : outbound_) {
    CloseOutbound(outbound, absl::CancelledError("the transport is ending"));
  }
}

// --- What time brings ------------------------------------------------------------------------

absl::Time Progress::Sweep(absl::Time now) {
  return std::min(SweepInbound(now), SweepOutbound(now));
}

absl::Time Progress::SweepInbound(absl::Time now) {
  UcxStats stats;
  absl::Time next = absl::InfiniteFuture();
  for (auto entry = inbound_.begin(); entry != inbound_.end();) {
    InboundPeer& peer = *entry->second;
    peer.EndGivenUp();
    if (!peer.endpoint().status().ok()) {
      peer.Close(Lost(peer.endpoint().status()));
    } else if (!peer.welcomed() && now - peer.since() > options_.connect_timeout) {
      peer.Close(absl::DeadlineExceededError("the peer did not introduce itself"));
    } else if (now - peer.quarantined_since() > options_.quarantine_timeout ||
               peer.endpoint().open_operations() > kMaxOpenOperations) {
      peer.Close(absl::UnavailableError("the peer does not answer"));
    }
    if (peer.ended() && peer.endpoint().closed()) {
      entry = inbound_.erase(entry);
      continue;
    }
    stats.arena_bytes += peer.memory_bytes();
    stats.granted_slots += static_cast<int64_t>(peer.granted_slots());
    stats.quarantined_slots += static_cast<int64_t>(peer.quarantined_slots());
    const bool open = !peer.welcomed() || peer.open_posts() > 0;
    next = std::min(next, now + (peer.ended() ? kClosingTick : open ? kTick : kIdleTick));
    ++entry;
  }
  absl::MutexLock lock(&mutex_);
  stats_ = stats;
  return next;
}

absl::Time Progress::SweepOutbound(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (auto entry = outbound_.begin(); entry != outbound_.end();) {
    Outbound& outbound = entry->second;
    OutboundPeer& peer = *outbound.peer;
    if (const absl::Status status = peer.endpoint().status(); !status.ok()) {
      CloseOutbound(outbound, outbound.call == nullptr ? Lost(status) : status);
    } else if (outbound.call != nullptr && now - peer.since() > options_.connect_timeout) {
      CloseOutbound(outbound,
                    absl::UnavailableError(absl::StrCat(
                        "no answer within ", absl::FormatDuration(options_.connect_timeout))));
    }
    next = std::min(next, peer.EndOverdue(now));
    if (outbound.preflight != nullptr) {
      AdvancePreflight(outbound, entry->first, now);
    }
    if (peer.endpoint().closed() && peer.open_posts() == 0) {
      entry = outbound_.erase(entry);
      continue;
    }
    const bool open = outbound.call != nullptr || peer.open_posts() > 0;
    const bool closing = peer.endpoint().handle() == nullptr;
    next = std::min(next, now + (closing ? kClosingTick : open ? kTick : kIdleTick));
    ++entry;
  }
  return next;
}

UcxStats Progress::stats() const {
  absl::MutexLock lock(&mutex_);
  UcxStats stats = stats_;
  stats.carriers.assign(carriers_.begin(), carriers_.end());
  return stats;
}

}  // namespace baton::transport::ucx
