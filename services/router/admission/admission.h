// Where requests wait for workers: the central queue and the choice of a pair.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/scheduling/central_queue.h"
#include "common/scheduling/pair_choice.h"
#include "services/router/workers/worker_set.h"

namespace baton::router {

// A pair that was chosen for a request. No prefill: decode prefills by itself.
struct AssignedPair {
  WorkerTicket prefill;
  WorkerTicket decode;
};

// A waiting request. Called without any lock of Admission; a call may arrive after Leave and must
// then be ignored.
class AdmissionClient {
 public:
  virtual ~AdmissionClient() = default;
  virtual void OnPair(AssignedPair pair) = 0;
  virtual void OnPrefillWorker(WorkerTicket prefill) = 0;
};

struct AdmissionRequest {
  uint64_t id = 0;  // unique in this process, and greater than those of earlier requests
  std::weak_ptr<AdmissionClient> client;
  scheduling::PairNeeds needs;
  int64_t bytes = 0;
};

// Bounded queue, first come, first served; requests that lost their prefill worker go before it,
// because they hold pages (architecture.md section 3 step 1). Nobody waits behind a request that no
// ready worker is large enough for. Thread-safe; held by shared_ptr because workers report to it.
class Admission {
 public:
  Admission(const scheduling::QueueLimits& limits, std::shared_ptr<WorkerSet> workers);
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // A request that arrives. RESOURCE_EXHAUSTED reason QUEUE_FULL with RetryInfo when it is full;
  // INVALID_ARGUMENT: larger than the queue.
  absl::Status Enqueue(AdmissionRequest request);
  // Puts a request that could not be placed back to where it stood.
  void Requeue(AdmissionRequest request);
  // Asks for a prefill worker alone, for the next attempt of a reservation.
  void WaitForPrefill(AdmissionRequest request);
  // Forgets a waiting request; nothing happens when it does not wait.
  void Leave(uint64_t id);

  // Places what can be placed. Called by workers when their load changed.
  void Dispatch();

  // Somebody could serve such a request, or any if none is told, at once or when there is room.
  bool CanServe(const scheduling::PairNeeds& needs = {}) const;
  // A prefill worker could, likewise.
  bool CanPrefill(const scheduling::PairNeeds& needs) const;
  // Since when nobody can serve any request; InfiniteFuture while somebody can. As of the last
  // Dispatch.
  absl::Time unservable_since() const;
  scheduling::QueueTotals queued() const;

  // Called after every Dispatch, one call at a time. It is not running and will not run again once
  // this has replaced it; it must not call Dispatch.
  void set_on_dispatched(std::function<void()> callback) {
    absl::MutexLock lock(&callback_mutex_);
    on_dispatched_ = std::move(callback);
  }

 private:
  using Grant = std::function<void()>;

  std::vector<scheduling::PrefillLoad> PrefillLoads() const;
  std::vector<scheduling::DecodeLoad> DecodeLoads() const;
  // A grant for the next request that can be placed; empty: none can.
  Grant PlaceNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Grant PlaceRetry(const std::vector<scheduling::PrefillLoad>& prefills)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The first that somebody who is ready could ever serve; who is larger than that lets others go
  // before it.
  Grant PlaceQueued(const std::vector<scheduling::PrefillLoad>& prefills)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a waiting request out for the pair; empty: a worker was removed a moment ago.
  Grant GrantPair(uint64_t id, const scheduling::WorkerPair& choice)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Worker> Find(WorkerKind kind, uint64_t id) const;

  const std::shared_ptr<WorkerSet> workers_;
  absl::Mutex callback_mutex_;
  std::function<void()> on_dispatched_ ABSL_GUARDED_BY(callback_mutex_);
  mutable absl::Mutex mutex_;
  scheduling::CentralQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, AdmissionRequest> queued_ ABSL_GUARDED_BY(mutex_);
  std::deque<AdmissionRequest> retries_ ABSL_GUARDED_BY(mutex_);
  absl::Time unservable_since_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router
