#include "services/router/work_pool.h"

#include <utility>

namespace baton::router {

WorkPool::WorkPool(int num_threads, size_t max_waiting) : max_waiting_(max_waiting) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

WorkPool::~WorkPool() { Stop(); }

void WorkPool::Stop() {
  std::deque<std::function<void()>> dropped;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    dropped.swap(waiting_);
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) {
      thread.join();
    }
  }
}

bool WorkPool::TrySubmit(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  if (stopping_ || waiting_.size() >= max_waiting_) {
    return false;
  }
  waiting_.push_back(std::move(work));
  return true;
}

void WorkPool::Run() {
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !waiting_.empty();
      };
      mutex_.Await(absl::Condition(&ready));
      if (stopping_) {
        return;
      }
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
  }
}

}  // namespace baton::router
