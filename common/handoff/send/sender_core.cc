#include "common/handoff/send/sender_core.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "common/handoff/send/handshake_client.h"
#include "common/handoff/send/link_rate.h"
#include "common/handoff/send/outgoing_session.h"
#include "common/handoff/send/peer_cache.h"
#include "common/handoff/send/sender.h"
#include "common/transport/transport.h"

namespace baton::handoff {
namespace {

// How often deadlines are looked at, and how long a Poll may wait.
constexpr absl::Duration kTick = absl::Milliseconds(50);

}  // namespace

SenderCore::SenderCore(std::vector<transport::Transport*> transports,
                       HandshakeClient* handshake,
                       kv::v1::KvLayout layout,
                       SenderOptions options)
    : transports_(std::move(transports)),
      options_(options),
      peers_(std::make_unique<PeerCache>(transports_, handshake, std::move(layout))) {}

void SenderCore::StartThreads() {
  shipping_ = std::thread([this] { ShippingLoop(); });
  for (transport::Transport* transport : transports_) {
    progress_.emplace_back([this, transport] { ProgressLoop(transport); });
  }
}

void SenderCore::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  shipping_.join();
  {
    absl::MutexLock lock(&mutex_);
    shipping_ended_ = true;
  }
  for (const std::shared_ptr<OutgoingSession>& session : Sessions()) {
    session->Fail(absl::UnavailableError("the prefill worker is shutting down"));
  }
  for (std::thread& thread : progress_) {
    thread.join();  // ends when no post is open
  }
  peers_.reset();
  for (const std::shared_ptr<OutgoingSession>& session : Sessions()) {
    session->DropControl();
  }
  std::vector<std::shared_ptr<OutgoingSession>> retired;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    sessions_.clear();
    runnable_.clear();
    queued_.clear();
    blocked_.clear();
    retired.swap(retired_);
  }
  for (const std::shared_ptr<OutgoingSession>& session : retired) {
    session->DropControl();
  }
}

absl::Status SenderCore::Admit(const std::shared_ptr<OutgoingSession>& session) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) {
    return absl::UnavailableError("the prefill worker is shutting down");
  }
  if (sessions_.size() >= static_cast<size_t>(options_.max_open_transfers)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.max_open_transfers, " transfers are open already"));
  }
  sessions_.insert(session);
  return absl::OkStatus();
}

std::vector<std::shared_ptr<OutgoingSession>> SenderCore::Sessions() {
  absl::MutexLock lock(&mutex_);
  return {sessions_.begin(), sessions_.end()};
}

void SenderCore::Schedule(std::shared_ptr<OutgoingSession> session) {
  absl::MutexLock lock(&mutex_);
  if (!stopping_ && queued_.insert(session.get()).second) {
    runnable_.push_back(std::move(session));
    changed_.Signal();
  }
}

void SenderCore::ScheduleAfterCompletion(std::shared_ptr<OutgoingSession> session) {
  {
    absl::MutexLock lock(&mutex_);
    if (!open_posts_.empty()) {
      blocked_.push_back(std::move(session));
      return;
    }
  }
  Schedule(std::move(session));
}

void SenderCore::Retire(std::shared_ptr<OutgoingSession> session) {
  absl::MutexLock lock(&mutex_);
  sessions_.erase(session);
  if (!stopped_) {
    retired_.push_back(std::move(session));
    changed_.Signal();
  }
}

uint64_t SenderCore::NextTag() {
  absl::MutexLock lock(&mutex_);
  return next_tag_++;
}

absl::Status SenderCore::Post(std::shared_ptr<OutgoingSession> session,
                              const Peer& peer,
                              transport::PostParams params) {
  const uint64_t tag = params.tag;
  {
    absl::MutexLock lock(&mutex_);
    open_posts_.emplace(tag, OpenPost{std::move(session), peer.transport, peer.rate});
  }
  peer.rate->Began(absl::Now());
  absl::Status status = peer.transport->Post(peer.connection, std::move(params));
  if (!status.ok()) {
    peer.rate->Ended(0, absl::Now());
    absl::MutexLock lock(&mutex_);
    open_posts_.erase(tag);
  }
  return status;
}

void SenderCore::CancelPosts(const std::vector<uint64_t>& tags) {
  for (const uint64_t tag : tags) {
    transport::Transport* transport = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = open_posts_.find(tag);
      transport = found == open_posts_.end() ? nullptr : found->second.transport;
    }
    if (transport != nullptr) {
      transport->CancelPost(tag);
    }
  }
}

void SenderCore::ShippingLoop() {
  absl::Time next_tick = absl::Now() + kTick;
  for (;;) {
    std::shared_ptr<OutgoingSession> session;
    std::vector<std::shared_ptr<OutgoingSession>> retired;
    {
      absl::MutexLock lock(&mutex_);
      while (!stopping_ && runnable_.empty() && retired_.empty()) {
        if (changed_.WaitWithDeadline(&mutex_, next_tick)) {
          break;
        }
      }
      if (stopping_) {
        return;
      }
      retired.swap(retired_);
      if (!runnable_.empty()) {
        session = std::move(runnable_.front());
        runnable_.pop_front();
        queued_.erase(session.get());
      }
    }
    for (const std::shared_ptr<OutgoingSession>& ended : retired) {
      ended->DropControl();
    }
    if (session != nullptr) {
      session->Work();
    }
    if (const absl::Time now = absl::Now(); now >= next_tick) {
      next_tick = now + kTick;
      for (const std::shared_ptr<OutgoingSession>& open : Sessions()) {
        open->CheckDeadline(now);
      }
    }
  }
}

void SenderCore::ProgressLoop(transport::Transport* transport) {
  for (;;) {
    for (const transport::Completion& completion : transport->Poll(absl::Now() + kTick)) {
      OnCompletion(completion);
    }
    absl::MutexLock lock(&mutex_);
    if (shipping_ended_ && open_posts_.empty()) {
      return;
    }
  }
}

void SenderCore::OnCompletion(const transport::Completion& completion) {
  std::shared_ptr<OutgoingSession> session;
  std::shared_ptr<LinkRate> rate;
  std::vector<std::shared_ptr<OutgoingSession>> blocked;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = open_posts_.find(completion.tag);
    if (completion.kind != transport::CompletionKind::kSent || found == open_posts_.end()) {
      return;
    }
    session = std::move(found->second.session);
    rate = std::move(found->second.rate);
    open_posts_.erase(found);
    blocked.swap(blocked_);
  }
  rate->Ended(completion.status.ok() ? completion.bytes : 0, absl::Now());
  session->OnPostDone(completion.tag, completion.status);
  for (std::shared_ptr<OutgoingSession>& waiting : blocked) {
    Schedule(std::move(waiting));
  }
}

}  // namespace baton::handoff
