// Work for the progress thread from other threads.
#pragma once

#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace baton::transport {

// Thread-safe. Bounded by its users: a post has at most a start and a cancellation in it, a
// connection an opening and a closing, an announced transfer one answer. Shared, because windows
// and connections may outlive their transport; then Push does nothing.
class Inbox {
 public:
  using Work = std::function<void()>;

  Inbox() = default;
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Makes the descriptor. Called once, first.
  absl::Status Open();
  // Readable while there is work.
  int fd() const { return fd_; }
  void Push(Work work);
  std::vector<Work> Take();
  // What is there is dropped unrun.
  void Close();

 private:
  int fd_ = -1;
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Work> work_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::transport
