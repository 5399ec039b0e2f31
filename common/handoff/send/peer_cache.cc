#include "common/handoff/send/peer_cache.h"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/handoff/send/handshake_client.h"
#include "common/kv/manifest/head_range.h"
#include "common/kv/manifest/layout.h"
#include "common/kv/manifest/segment_header.h"
#include "common/transport/transport.h"

namespace baton::handoff {

const worker::v1::TransportEndpoint* FindEndpoint(
    const std::vector<worker::v1::TransportEndpoint>& endpoints,
    const transport::Transport& transport) {
  const auto found = std::find_if(endpoints.begin(), endpoints.end(), [&](const auto& endpoint) {
    return endpoint.transport() == transport.name();
  });
  return found == endpoints.end() ? nullptr : &*found;
}

absl::Status CheckOffers(const std::string& control_address,
                         const std::vector<worker::v1::TransportEndpoint>& endpoints,
                         const std::vector<transport::Transport*>& transports) {
  const auto offered = [&](const transport::Transport* transport) {
    return FindEndpoint(endpoints, *transport) != nullptr;
  };
  if (std::none_of(transports.begin(), transports.end(), offered)) {
    return absl::FailedPreconditionError(
        absl::StrCat("decode worker ", control_address, " offers no transport that is known here"));
  }
  return absl::OkStatus();
}

PeerCache::PeerCache(std::vector<transport::Transport*> transports,
                     HandshakeClient* handshake,
                     kv::v1::KvLayout layout)
    : transports_(std::move(transports)), handshake_(handshake), layout_(std::move(layout)) {}

PeerCache::~PeerCache() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
  mutex_.Await(absl::Condition(+[](int* connecting) { return *connecting == 0; }, &connecting_));
}

bool PeerCache::IsCurrent(const Peer& peer,
                          const std::vector<worker::v1::TransportEndpoint>& endpoints) {
  if (peer.connection->lost()) {
    return false;
  }
  if (endpoints.empty()) {
    return true;
  }
  const worker::v1::TransportEndpoint* const endpoint = FindEndpoint(endpoints, *peer.transport);
  return endpoint != nullptr && endpoint->connection_data() == peer.connection_data;
}

void PeerCache::Get(const std::string& control_address,
                    const std::vector<worker::v1::TransportEndpoint>& endpoints,
                    Ready ready) {
  std::shared_ptr<const Peer> peer;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    peer = Current(control_address, endpoints);
    if (peer == nullptr) {
      status = Await(control_address, endpoints, ready);
    }
  }
  if (peer != nullptr) {
    ready(std::move(peer));
  } else if (!status.ok()) {
    ready(std::move(status));
  }
}

std::shared_ptr<const Peer> PeerCache::Current(
    const std::string& control_address,
    const std::vector<worker::v1::TransportEndpoint>& endpoints) const {
  const auto found = entries_.find(control_address);
  const bool current = found != entries_.end() && found->second.peer != nullptr &&
                       IsCurrent(*found->second.peer, endpoints);
  return current ? found->second.peer : nullptr;
}

absl::Status PeerCache::Await(const std::string& control_address,
                              const std::vector<worker::v1::TransportEndpoint>& endpoints,
                              Ready& ready) {
  const auto found = entries_.find(control_address);
  const bool connecting = found != entries_.end() && found->second.peer == nullptr;
  if (!connecting && waiting_.size() >= kMaxWaiting) {
    return absl::UnavailableError(
        absl::StrCat(kMaxWaiting, " decode workers wait to be connected to already"));
  }
  Entry& entry = entries_[control_address];
  entry.peer = nullptr;
  entry.waiting.push_back(std::move(ready));
  if (connecting) {
    return absl::OkStatus();
  }
  Attempt attempt = {.control_address = control_address, .endpoints = endpoints};
  if (connecting_ == kMaxConnecting) {
    waiting_.push_back(std::move(attempt));
  } else {
    ++connecting_;
    std::thread([this, first = std::move(attempt)]() mutable {
      ConnectAll(std::move(first));
    }).detach();
  }
  return absl::OkStatus();
}

void PeerCache::ConnectAll(Attempt attempt) {
  Answer(attempt, MakePeer(attempt.control_address, attempt.endpoints));
  for (;;) {
    bool stopping = false;
    {
      absl::MutexLock lock(&mutex_);
      if (waiting_.empty()) {
        --connecting_;
        return;
      }
      attempt = std::move(waiting_.front());
      waiting_.pop_front();
      stopping = stopping_;
    }
    Answer(attempt,
           stopping ? absl::CancelledError("the sender ends")
                    : MakePeer(attempt.control_address, attempt.endpoints));
  }
}

void PeerCache::Answer(const Attempt& attempt,
                       const absl::StatusOr<std::shared_ptr<const Peer>>& peer) {
  std::vector<Ready> waiting;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = entries_.find(attempt.control_address);
    waiting = std::move(found->second.waiting);
    found->second.waiting.clear();
    if (peer.ok()) {
      found->second.peer = *peer;
    } else {
      entries_.erase(found);
    }
  }
  for (Ready& ready : waiting) {
    ready(peer);
  }
}

absl::StatusOr<std::shared_ptr<const Peer>> PeerCache::MakePeer(
    const std::string& control_address,
    std::vector<worker::v1::TransportEndpoint> endpoints) const {
  worker::v1::HandshakeRequest request;
  *request.mutable_layout() = layout_;
  request.set_segment_header_version(kv::SegmentHeader::kVersion);
  request.set_kv_ranks(kv::kWorkerRanks);
  for (const transport::Transport* transport : transports_) {
    request.add_transports(std::string(transport->name()));
  }
  absl::StatusOr<worker::v1::HandshakeResponse> response =
      handshake_->Handshake(control_address, request);
  if (!response.ok()) {
    return WithContext(response.status(), "handshake with " + control_address);
  }
  BATON_RETURN_IF_ERROR(kv::CheckLayout(layout_, response->layout()));
  if (response->segment_header_version() != kv::SegmentHeader::kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("decode worker ",
                                                      control_address,
                                                      " speaks segment header version ",
                                                      response->segment_header_version(),
                                                      ", this one ",
                                                      kv::SegmentHeader::kVersion));
  }
  BATON_RETURN_IF_ERROR(
      kv::CheckRanks(layout_.kv_heads(), kv::kWorkerRanks, std::max(response->kv_ranks(), 1u)));
  if (endpoints.empty()) {
    endpoints.assign(response->endpoints().begin(), response->endpoints().end());
  }
  BATON_RETURN_IF_ERROR(CheckOffers(control_address, endpoints, transports_));
  return ConnectTo(endpoints);
}

absl::StatusOr<std::shared_ptr<const Peer>> PeerCache::ConnectTo(
    const std::vector<worker::v1::TransportEndpoint>& endpoints) const {
  absl::Status status;
  for (transport::Transport* transport : transports_) {
    const worker::v1::TransportEndpoint* const endpoint = FindEndpoint(endpoints, *transport);
    if (endpoint == nullptr) {
      continue;
    }
    absl::StatusOr<std::shared_ptr<transport::Connection>> connection =
        transport->Connect(endpoint->connection_data());
    if (connection.ok()) {
      return std::make_shared<const Peer>(Peer{.transport = transport,
                                               .connection_data = endpoint->connection_data(),
                                               .connection = *std::move(connection)});
    }
    status = connection.status();
  }
  return status;
}

void PeerCache::Drop(const std::string& control_address, const std::shared_ptr<const Peer>& peer) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(control_address);
  if (found != entries_.end() && found->second.peer == peer) {
    entries_.erase(found);
  }
}

}  // namespace baton::handoff
