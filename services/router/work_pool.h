// A few threads for work that is too long for a gRPC reaction: rendering and tokenizing prompts.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton::router {

// Thread-safe. Work runs in the order of submission, on `num_threads` threads.
class WorkPool {
 public:
  WorkPool(int num_threads, size_t max_waiting);
  // Stops; work that waits is dropped.
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // False when max_waiting pieces of work wait already or the pool has stopped: `work` was not
  // taken.
  [[nodiscard]] bool TrySubmit(std::function<void()> work);
  // Drops what waits and joins the threads.
  void Stop();

 private:
  void Run();

  const size_t max_waiting_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace baton::router
