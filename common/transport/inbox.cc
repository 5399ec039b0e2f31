#include "common/transport/inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace baton::transport {

Inbox::~Inbox() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

absl::Status Inbox::Open() {
  fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return fd_ < 0 ? absl::ResourceExhaustedError("no event descriptor for a transport")
                 : absl::OkStatus();
}

void Inbox::Push(Work work) {
  absl::MutexLock lock(&mutex_);
  if (closed_) {
    return;
  }
  work_.push_back(std::move(work));
  if (work_.size() == 1) {
    // Fails only when the counter is full, and then the descriptor is readable.
    static_cast<void>(eventfd_write(fd_, 1));
  }
}

std::vector<Inbox::Work> Inbox::Take() {
  absl::MutexLock lock(&mutex_);
  if (!work_.empty()) {
    eventfd_t count = 0;
    static_cast<void>(eventfd_read(fd_, &count));
  }
  return std::exchange(work_, {});
}

void Inbox::Close() {
  std::vector<Work> dropped;  // destroyed without the lock
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  dropped.swap(work_);
}

}  // namespace baton::transport
