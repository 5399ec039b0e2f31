#include "common/worker/health_monitor.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

#include "common/engine/engine.h"
#include "common/rpc/server.h"
#include "common/worker/progress_tracker.h"

namespace baton::worker {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(100);

}  // namespace

HealthMonitor::HealthMonitor(rpc::Server* server,
                             const engine::Engine* engine,
                             absl::Duration stall_timeout,
                             std::vector<std::string> service_names)
    : server_(server),
      engine_(engine),
      stall_timeout_(stall_timeout),
      service_names_(std::move(service_names)) {
  const bool ready = !engine_->load().draining;
  ready_.store(ready);
  Publish(ready, /*live=*/true);
  thread_ = std::thread([this] { ThreadMain(); });
}

HealthMonitor::~HealthMonitor() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void HealthMonitor::ThreadMain() {
  ProgressTracker progress(stall_timeout_);
  bool live = true;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kPeriod)) {
        return;
      }
    }
    const engine::EngineLoad load = engine_->load();
    const bool now_live = !progress.Stalled(load, absl::Now());
    const bool now_ready = now_live && !load.draining;
    if (now_live != live) {
      spdlog::log(now_live ? spdlog::level::info : spdlog::level::err,
                  "engine {}: steps={} progress={} running={} waiting={}",
                  now_live ? "makes progress again" : "is stuck",
                  load.steps,
                  load.progress,
                  load.running_sequences,
                  load.waiting_requests);
    }
    if (now_live != live || now_ready != ready_.load()) {
      live = now_live;
      ready_.store(now_ready);
      Publish(now_ready, live);
    }
  }
}

void HealthMonitor::Publish(bool ready, bool live) {
  server_->SetServing("", ready);
  server_->SetServing("readiness", ready);
  for (const std::string& name : service_names_) {
    server_->SetServing(name, ready);
  }
  server_->SetServing("liveness", live);
}

}  // namespace baton::worker
