// Threads and bookkeeping shared by the transfers of one Sender.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "common/handoff/send/outgoing_session.h"
#include "common/handoff/send/peer_cache.h"
#include "common/handoff/send/sender.h"
#include "common/transport/transport.h"

namespace baton::handoff {

// One shipping thread runs sessions that have something to ship, one after the other; one progress
// thread per transport hands completions to their sessions. Shared, because a sink may outlive its
// Sender. Thread-safe.
class SenderCore : public std::enable_shared_from_this<SenderCore> {
 public:
  SenderCore(std::vector<transport::Transport*> transports,
             HandshakeClient* handshake,
             kv::v1::KvLayout layout,
             SenderOptions options);

  void StartThreads();
  // Fails every session, waits until no post is open, ends the threads.
  void Stop();

  // kResourceExhausted when too many transfers are open, kUnavailable after Stop.
  absl::Status Admit(const std::shared_ptr<OutgoingSession>& session);

  const SenderOptions& options() const { return options_; }
  const std::vector<transport::Transport*>& transports() const { return transports_; }
  PeerCache& peers() { return *peers_; }

  // The shipping thread will call session->Work(); a session waits at most once.
  void Schedule(std::shared_ptr<OutgoingSession> session);
  // The same, once a completion has made room in a transport's queue.
  void ScheduleAfterCompletion(std::shared_ptr<OutgoingSession> session);
  // The session has ended; its last references here go on the shipping thread.
  void Retire(std::shared_ptr<OutgoingSession> session);

  uint64_t NextTag();
  absl::Status Post(std::shared_ptr<OutgoingSession> session,
                    const Peer& peer,
                    transport::PostParams params);
  void CancelPosts(const std::vector<uint64_t>& tags);

 private:
  struct OpenPost {
    std::shared_ptr<OutgoingSession> session;
    transport::Transport* transport = nullptr;
    std::shared_ptr<LinkRate> rate;
  };

  void ShippingLoop();
  void ProgressLoop(transport::Transport* transport);
  void OnCompletion(const transport::Completion& completion);
  std::vector<std::shared_ptr<OutgoingSession>> Sessions();

  const std::vector<transport::Transport*> transports_;
  const SenderOptions options_;
  std::unique_ptr<PeerCache> peers_;
  std::thread shipping_;
  std::vector<std::thread> progress_;

  absl::Mutex mutex_;
  absl::CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool shipping_ended_ ABSL_GUARDED_BY(mutex_) = false;  // no post will be made any more
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;         // Stop has let go of everything
  uint64_t next_tag_ ABSL_GUARDED_BY(mutex_) = 1;
  std::unordered_set<std::shared_ptr<OutgoingSession>> sessions_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<OutgoingSession>> runnable_ ABSL_GUARDED_BY(mutex_);
  std::unordered_set<const OutgoingSession*> queued_ ABSL_GUARDED_BY(mutex_);  // in runnable_
  std::vector<std::shared_ptr<OutgoingSession>> blocked_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<OutgoingSession>> retired_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, OpenPost> open_posts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::handoff
