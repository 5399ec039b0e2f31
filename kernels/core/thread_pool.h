// The compute threads of a worker.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace baton::kernels {

// Fork-join pool: ParallelFor splits [0, n) over the pool's threads and the caller, and returns
// when every index is done. One ParallelFor at a time; the pool belongs to one executor thread.
// Which thread runs an index never changes a result, because indices share no output.
class ThreadPool {
 public:
  // threads counts the caller: 1 means no further thread is made.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(index, thread) for every index in [0, n); thread is in [0, threads()) and names the
  // scratch memory that the call may use. Indices are handed out one by one, so uneven work evens
  // out. fn must not throw and must not call ParallelFor of the same pool. Allocates nothing
  // itself.
  void ParallelFor(int64_t n, const std::function<void(int64_t index, int thread)>& fn);

 private:
  void WorkerLoop(int thread);
  void RunIndices(const std::function<void(int64_t, int)>& fn, int64_t n, int thread);

  std::vector<std::thread> workers_;
  std::mutex mutex_;  // guards running_, stopping_, fn_, n_ and every change of generation_
  std::condition_variable start_;
  std::condition_variable done_;
  std::atomic<uint64_t> generation_{0};  // counts ParallelFor calls
  std::atomic<int64_t> next_{0};         // the next index to hand out
  int running_ = 0;                      // workers inside the present call
  bool stopping_ = false;
  const std::function<void(int64_t, int)>* fn_ = nullptr;  // null between calls
  int64_t n_ = 0;
};

}  // namespace baton::kernels
