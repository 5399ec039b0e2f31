// Every worker that this router knows.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "common/rpc/tls.h"
#include "services/router/timer_queue.h"
#include "services/router/workers/worker.h"
#include "services/router/workers/worker_calls.h"

namespace baton::router {

// What the known workers allow a request to be.
struct WorkerLimits {
  // Largest kv_pool_tokens of any decode worker; unset: none is known.
  std::optional<uint64_t> max_pool_tokens = {};
  // Smallest max_sequence_tokens of any worker; unset: none is known.
  std::optional<uint32_t> max_sequence_tokens = {};
  // KV formats that some decode worker holds and some prefill worker (or a decode worker of role
  // both, which prefills itself) makes.
  std::vector<std::string> kv_formats = {};
};

// Thread-safe.
class WorkerSet {
 public:
  // Channels use the router's own TLS.
  WorkerSet(rpc::TlsOptions tls,
            std::shared_ptr<TimerQueue> timers,
            std::shared_ptr<WorkerCalls> calls);
  ~WorkerSet();
  WorkerSet(const WorkerSet&) = delete;
  WorkerSet& operator=(const WorkerSet&) = delete;

  // Set them before the first SetAddresses; each may do nothing but not be empty.
  void set_events(Worker::Events events) { events_ = std::move(events); }

  // Makes the workers of `kind` exactly those at `addresses`. Requests that run on a removed one
  // finish there.
  void SetAddresses(WorkerKind kind, const std::vector<std::string>& addresses);

  std::vector<std::shared_ptr<Worker>> List(WorkerKind kind) const;
  WorkerLimits limits() const;

  // Stops watching all of them.
  void Stop();

 private:
  using Workers = std::map<std::string, std::shared_ptr<Worker>>;

  std::shared_ptr<Worker> Make(WorkerKind kind, const std::string& address)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const rpc::TlsOptions tls_;
  const std::shared_ptr<TimerQueue> timers_;
  const std::shared_ptr<WorkerCalls> calls_;
  Worker::Events events_ = {.on_change = [] {}, .on_start = [](const auto& /*worker*/) {}};
  mutable absl::Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<WorkerKind, Workers> workers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router
