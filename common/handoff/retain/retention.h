// Retention of encoded KV at prefill: a copy of what is shipped, for when the first way fails.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/engine/kv_sink.h"
#include "common/handoff/retain/retained_kv.h"
#include "common/handoff/retain/retention_store.h"
#include "common/metrics/registry.h"

namespace baton::handoff {

// One per prefill worker: the store and one thread that copies pages, so that neither the executor
// nor the shipping thread waits for it. The same thread drops entries whose lease has run out.
// Thread-safe. Must outlive the sinks that Retain made; the destructor stops it.
class Retention {
 public:
  // `registry` is borrowed.
  Retention(const RetentionOptions& options, metrics::Registry& registry);
  ~Retention();
  Retention(const Retention&) = delete;
  Retention& operator=(const Retention&) = delete;

  RetentionStore& store() { return store_; }
  // Waits for what the thread is to do and ends it: nothing is copied or found any more. Called by
  // one thread, when no sink is given pages any more; again it does nothing.
  void Stop();

  // A sink that gives everything to `sink` and copies it into `entry`, which the store opened. It
  // calls back when both have read the pages. A copy for which there is no room any more ends and
  // leaves the transfer alone.
  std::unique_ptr<engine::KvSink> Retain(std::shared_ptr<RetainedKv> entry,
                                         std::unique_ptr<engine::KvSink> sink);

 private:
  friend class RetainingSink;
  using Job = std::function<void()>;

  // Jobs run on the thread, in order.
  void Run(Job job);
  void Loop();

  RetentionStore store_;
  absl::Mutex mutex_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::handoff
