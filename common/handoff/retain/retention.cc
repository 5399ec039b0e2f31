#include "common/handoff/retain/retention.h"

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "common/engine/kv_sink.h"
#include "common/handoff/retain/retained_kv.h"
#include "common/handoff/retain/retaining_sink.h"
#include "common/handoff/retain/retention_store.h"
#include "common/metrics/registry.h"

namespace baton::handoff {
namespace {

// How often leases are looked at; they last minutes.
constexpr absl::Duration kTick = absl::Seconds(1);

}  // namespace

Retention::Retention(const RetentionOptions& options, metrics::Registry& registry)
    : store_(options, registry), thread_([this] { Loop(); }) {}

Retention::~Retention() { Stop(); }

void Retention::Stop() {
  if (!thread_.joinable()) {
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::unique_ptr<engine::KvSink> Retention::Retain(std::shared_ptr<RetainedKv> entry,
                                                  std::unique_ptr<engine::KvSink> sink) {
  return std::make_unique<RetainingSink>(this, std::move(entry), std::move(sink));
}

void Retention::Run(Job job) {
  absl::MutexLock lock(&mutex_);
  jobs_.push_back(std::move(job));
}

void Retention::Loop() {
  const auto due = [this]()
                       ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !jobs_.empty(); };
  absl::Time next_tick = absl::Now() + kTick;
  for (;;) {
    Job job;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithDeadline(absl::Condition(&due), next_tick);
      if (!jobs_.empty()) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
      } else if (stopping_) {
        return;
      }
    }
    if (job) {
      job();
    }
    if (const absl::Time now = absl::Now(); now >= next_tick) {
      next_tick = now + kTick;
      store_.Expire(now);
    }
  }
}

}  // namespace baton::handoff
