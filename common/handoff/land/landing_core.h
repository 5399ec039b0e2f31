// What the sessions of one Landing share.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "common/engine/engine.h"
#include "common/handoff/land/landing.h"
#include "common/handoff/land/landing_reservation.h"
#include "common/handoff/land/transfer_session.h"
#include "common/transport/transport.h"

namespace baton::handoff {

// Open reservations, and the progress threads that hand received payloads to their sessions.
// Shared, because a stream's session may outlive its Landing. Thread-safe.
class LandingCore {
 public:
  LandingCore(std::vector<transport::Transport*> transports, LandingOptions options);

  void StartThreads();
  // Closes every reservation and ends the threads.
  void Stop();

  const LandingOptions& options() const { return options_; }
  const std::vector<transport::Transport*>& transports() const { return transports_; }
  void set_engine(engine::Engine* engine) { engine_ = engine; }
  engine::Engine& engine() const { return *engine_; }

  // kAlreadyExists when the id is open, kUnavailable after Stop.
  absl::Status Add(std::shared_ptr<LandingReservation> reservation);
  // Null when it has ended.
  std::shared_ptr<LandingReservation> Find(uint64_t reservation_id) const;
  // Takes it out of the table; null when it was not there.
  std::shared_ptr<LandingReservation> Forget(uint64_t reservation_id);
  int64_t reservations() const;

  // Names a segment for its completion.
  uint64_t AddTag(std::weak_ptr<TransferSession> session, uint32_t segment_index);
  void DropTag(uint64_t tag);

 private:
  struct Awaited {
    std::weak_ptr<TransferSession> session;
    uint32_t segment_index = 0;
  };

  void ProgressLoop(transport::Transport* transport);
  bool stopping() const;

  const std::vector<transport::Transport*> transports_;
  const LandingOptions options_;
  engine::Engine* engine_ = nullptr;  // set once, before serving
  std::vector<std::thread> progress_;

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_tag_ ABSL_GUARDED_BY(mutex_) = 1;
  std::unordered_map<uint64_t, std::shared_ptr<LandingReservation>> reservations_
      ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Awaited> awaited_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::handoff
