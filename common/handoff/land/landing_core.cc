#include "common/handoff/land/landing_core.h"

#include <memory>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "common/handoff/land/landing.h"
#include "common/handoff/land/landing_reservation.h"
#include "common/handoff/land/transfer_session.h"
#include "common/transport/transport.h"

namespace baton::handoff {
namespace {

// How long a Poll may wait; bounds the time that Stop takes.
constexpr absl::Duration kPollWait = absl::Milliseconds(50);

}  // namespace

LandingCore::LandingCore(std::vector<transport::Transport*> transports, LandingOptions options)
    : transports_(std::move(transports)), options_(options) {}

void LandingCore::StartThreads() {
  for (transport::Transport* transport : transports_) {
    progress_.emplace_back([this, transport] { ProgressLoop(transport); });
  }
}

void LandingCore::Stop() {
  std::unordered_map<uint64_t, std::shared_ptr<LandingReservation>> reservations;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    reservations.swap(reservations_);
  }
  for (auto& [id, reservation] : reservations) {
    const absl::Status reason = absl::UnavailableError("the decode worker is shutting down");
    if (const auto session = reservation->Close(reason); session != nullptr) {
      session->Fail(reason);
    }
  }
  for (std::thread& thread : progress_) {
    thread.join();
  }
}

absl::Status LandingCore::Add(std::shared_ptr<LandingReservation> reservation) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) {
    return absl::UnavailableError("the decode worker is shutting down");
  }
  const uint64_t id = reservation->id();
  if (!reservations_.emplace(id, std::move(reservation)).second) {
    return absl::AlreadyExistsError(absl::StrCat("reservation ", id, " is open already"));
  }
  return absl::OkStatus();
}

std::shared_ptr<LandingReservation> LandingCore::Find(uint64_t reservation_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = reservations_.find(reservation_id);
  return found == reservations_.end() ? nullptr : found->second;
}

std::shared_ptr<LandingReservation> LandingCore::Forget(uint64_t reservation_id) {
  absl::MutexLock lock(&mutex_);
  const auto found = reservations_.find(reservation_id);
  if (found == reservations_.end()) {
    return nullptr;
  }
  std::shared_ptr<LandingReservation> reservation = std::move(found->second);
  reservations_.erase(found);
  return reservation;
}

int64_t LandingCore::reservations() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(reservations_.size());
}

uint64_t LandingCore::AddTag(std::weak_ptr<TransferSession> session, uint32_t segment_index) {
  absl::MutexLock lock(&mutex_);
  const uint64_t tag = next_tag_++;
  awaited_.emplace(tag, Awaited{std::move(session), segment_index});
  return tag;
}

void LandingCore::DropTag(uint64_t tag) {
  absl::MutexLock lock(&mutex_);
  awaited_.erase(tag);
}

bool LandingCore::stopping() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

void LandingCore::ProgressLoop(transport::Transport* transport) {
  while (!stopping()) {
    for (const transport::Completion& completion : transport->Poll(absl::Now() + kPollWait)) {
      Awaited awaited;
      {
        absl::MutexLock lock(&mutex_);
        const auto found = awaited_.find(completion.tag);
        if (completion.kind != transport::CompletionKind::kReceived || found == awaited_.end()) {
          continue;
        }
        awaited = std::move(found->second);
        awaited_.erase(found);
      }
      if (const auto session = awaited.session.lock(); session != nullptr) {
        session->OnReceived(awaited.segment_index, completion);
      }
    }
  }
}

}  // namespace baton::handoff
