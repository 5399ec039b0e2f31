// Renews the lease of a reservation while its prompt waits for or runs in prefill.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "proto/baton/worker/v1/decode.pb.h"
#include "services/router/timer_queue.h"
#include "services/router/workers/worker.h"

namespace baton::router {

// Calls Decode.RenewLease every third of the lease until Stop. A renewal that fails is tried again
// at the next turn; a reservation that is lost ends its Decode.Generate stream, which is what the
// request acts on. Thread-safe; held by shared_ptr because timers and calls refer to it.
class LeaseKeeper : public std::enable_shared_from_this<LeaseKeeper> {
 public:
  // `timers` must outlive it.
  static std::shared_ptr<LeaseKeeper> Start(std::shared_ptr<Worker> worker,
                                            const worker::v1::Reserved& reservation,
                                            TimerQueue* timers);
  // Idempotent. A renewal on its way is not waited for.
  void Stop();

 private:
  LeaseKeeper(std::shared_ptr<Worker> worker,
              const worker::v1::Reserved& reservation,
              TimerQueue* timers);
  void Schedule();
  void Renew();

  const std::shared_ptr<Worker> worker_;
  const uint64_t reservation_id_;
  const uint64_t epoch_;
  const absl::Duration period_;
  TimerQueue* const timers_;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  TimerQueue::Id timer_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::router
