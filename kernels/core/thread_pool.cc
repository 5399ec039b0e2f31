#include "kernels/core/thread_pool.h"

#include <algorithm>

namespace baton::kernels {
namespace {

// Polls before a worker sleeps: some ten microseconds, the gap between two ops of a decode step.
constexpr int kSpinPolls = 256;

void PauseCpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  const int workers = std::max(threads, 1) - 1;
  workers_.reserve(static_cast<size_t>(workers));
  for (int i = 0; i < workers; ++i) {
    workers_.emplace_back([this, i] { WorkerLoop(i + 1); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    generation_.fetch_add(1, std::memory_order_release);
  }
  start_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::ParallelFor(int64_t n, const std::function<void(int64_t, int)>& fn) {
  if (workers_.empty() || n <= 1) {
    for (int64_t i = 0; i < n; ++i) {
      fn(i, 0);
    }
    return;
  }
  {
    std::lock_guard lock(mutex_);
    fn_ = &fn;
    n_ = n;
    next_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
  }
  start_.notify_all();
  RunIndices(fn, n, 0);
  // Every index is taken now. A worker that has not woken yet finds fn_ empty and sleeps on, so a
  // busy machine delays this call by its slowest index only, never by a wake-up.
  std::unique_lock lock(mutex_);
  fn_ = nullptr;
  done_.wait(lock, [this] { return running_ == 0; });
}

void ThreadPool::RunIndices(const std::function<void(int64_t, int)>& fn, int64_t n, int thread) {
  for (;;) {
    const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= n) {
      return;
    }
    fn(index, thread);
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint64_t seen = 0;
  for (;;) {
    for (int i = 0; i < kSpinPolls && generation_.load(std::memory_order_acquire) == seen; ++i) {
      PauseCpu();
    }
    std::unique_lock lock(mutex_);
    start_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
    seen = generation_.load(std::memory_order_relaxed);
    if (stopping_) {
      return;
    }
    if (fn_ == nullptr) {
      continue;
    }
    const std::function<void(int64_t, int)>& fn = *fn_;
    const int64_t n = n_;
    ++running_;
    lock.unlock();
    RunIndices(fn, n, thread);
    lock.lock();
    if (--running_ == 0) {
      done_.notify_one();
    }
  }
}

}  // namespace baton::kernels
