// Keeps grpc.health.v1 in step with what the worker can do.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/engine/engine.h"
#include "common/rpc/server.h"

namespace baton::worker {

// A thread that looks at the engine ten times a second. Ready (names "", "readiness" and the
// service names): not draining, and work makes progress. Live ("liveness"): work makes progress.
class HealthMonitor {
 public:
  // `server` and `engine` are borrowed and must outlive the monitor.
  HealthMonitor(rpc::Server* server,
                const engine::Engine* engine,
                absl::Duration stall_timeout,
                std::vector<std::string> service_names);
  ~HealthMonitor();
  HealthMonitor(const HealthMonitor&) = delete;
  HealthMonitor& operator=(const HealthMonitor&) = delete;

  // What the last look found.
  bool ready() const { return ready_.load(); }

 private:
  void ThreadMain();
  void Publish(bool ready, bool live);

  rpc::Server* const server_;
  const engine::Engine* const engine_;
  const absl::Duration stall_timeout_;
  const std::vector<std::string> service_names_;
  std::atomic<bool> ready_{false};
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::worker
