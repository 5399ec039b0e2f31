// The outgoing connections of a progress thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"

#include "common/transport/inbox.h"
#include "common/transport/outbound_posts.h"
#include "common/transport/threaded_transport.h"
#include "common/transport/transport.h"

namespace baton::transport {

// `Peer` starts posts (Start), has them (posts, an OutboundPosts) and ends them all (Close).
// Belongs to the progress thread.
template <typename Peer>
class OutboundTable {
 public:
  struct Entry {
    std::unique_ptr<Peer> peer;
    std::shared_ptr<ConnectCall> call;  // until it is answered
    std::weak_ptr<PeerConnection> connection;
  };

  // `completed` takes the completion of a post whose connection is not here any more.
  OutboundTable(std::shared_ptr<Inbox> inbox, OutboundPosts::OnCompletion completed)
      : inbox_(std::move(inbox)), completed_(std::move(completed)) {}

  std::unordered_map<uint64_t, Entry>& entries() { return entries_; }
  // Null when there is none.
  Peer* Find(uint64_t id) {
    const auto found = entries_.find(id);
    return found == entries_.end() ? nullptr : found->second.peer.get();
  }
  void Add(uint64_t id, std::unique_ptr<Peer> peer, const std::shared_ptr<ConnectCall>& call) {
    entries_.emplace(id, Entry{.peer = std::move(peer), .call = call, .connection = {}});
  }

  // The caller of Connect gets a handle, whose last reference closes the connection.
  void Answer(uint64_t id, std::string carrier, bool reads_devices) {
    Entry& entry = entries_.at(id);
    auto connection = std::make_shared<PeerConnection>(
        id,
        std::move(carrier),
        [this, id, inbox = inbox_] {
          inbox->Push([this, id] { Close(id, absl::CancelledError("the connection was closed")); });
        },
        reads_devices);
    entry.connection = connection;
    std::exchange(entry.call, nullptr)->Answer(std::move(connection));
  }

  // Its posts end with `reason`, its Connect too if it waits still. Ignores an unknown one.
  void Close(uint64_t id, const absl::Status& reason) {
    const auto found = entries_.find(id);
    if (found == entries_.end()) {
      return;
    }
    Entry entry = std::move(found->second);
    entries_.erase(found);
    if (const auto handle = entry.connection.lock()) {
      handle->set_lost();
    }
    entry.peer->Close(reason);
    if (entry.call != nullptr) {
      entry.call->Answer(reason);
    }
  }
  void CloseAll(const absl::Status& reason) {
    while (!entries_.empty()) {
      Close(entries_.begin()->first, reason);
    }
  }

  // PostProgress.
  void Post(uint64_t id, PostParams params) {
    if (Peer* const peer = Find(id); peer != nullptr) {
      peer->Start(std::move(params));
      return;
    }
    completed_(Completion{.kind = CompletionKind::kSent,
                          .tag = params.tag,
                          .status = absl::UnavailableError("the connection is lost")});
  }
  void Cancel(uint64_t tag) {
    for (auto& [id, entry] : entries_) {
      entry.peer->posts().Cancel(tag, absl::CancelledError("the post was cancelled"));
    }
  }
  void CancelAll() {
    for (auto& [id, entry] : entries_) {
      entry.peer->posts().CancelAll(absl::CancelledError("the transport was released"));
    }
  }

 private:
  const std::shared_ptr<Inbox> inbox_;
  const OutboundPosts::OnCompletion completed_;
  std::unordered_map<uint64_t, Entry> entries_;
};

}  // namespace baton::transport
