#include "tests/kernels/device_double/late_copies.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/exec_context.h"
#include "kernels/core/op_graphs.h"
#include "tests/kernels/device_double/deferred_queues.h"
#include "tests/kernels/device_double/guarded_memory.h"

namespace baton::kernels {

class LateCopies::LateMark final : public Mark {
 public:
  LateMark(LateCopies& queue, int64_t count) : queue_(queue), count_(count) {}
  absl::Status Wait() override { return queue_.Finish(count_); }

 private:
  LateCopies& queue_;
  const int64_t count_;
};

absl::Status LateCopies::Follow(const ExecContext& exec) {
  if (exec.graphs != nullptr) {
    if (absl::Status status = exec.graphs->Flush(); !status.ok()) {
      return status;
    }
  }
  return DeferredQueues::Finish(exec);
}

absl::Status LateCopies::StartDownload(std::byte* target, const std::byte* source, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  waiting_.push_back({.target = target, .source = source, .bytes = bytes, .within_device = false});
  return absl::OkStatus();
}

absl::Status LateCopies::StartMoves(std::span<const Piece> pieces) {
  absl::MutexLock lock(&mutex_);
  for (const Piece& piece : pieces) {
    waiting_.push_back({.target = piece.target,
                        .source = piece.source,
                        .bytes = piece.bytes,
                        .within_device = true});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CopyQueue::Mark>> LateCopies::MakeMark() {
  absl::MutexLock lock(&mutex_);
  return std::make_unique<LateMark>(*this, done_ + static_cast<int64_t>(waiting_.size()));
}

void LateCopies::Hold() {
  absl::MutexLock lock(&mutex_);
  held_ = true;
}

void LateCopies::Release() {
  absl::MutexLock lock(&mutex_);
  held_ = false;
}

void LateCopies::Fail() {
  absl::MutexLock lock(&mutex_);
  fails_ = true;
}

int64_t LateCopies::moved_bytes() {
  absl::MutexLock lock(&mutex_);
  return moved_bytes_;
}

absl::Status LateCopies::Do(const Copy& copy) {
  if (!copy.within_device) {
    return GuardedMemory::Get().Download(copy.target, copy.source, copy.bytes);
  }
  const GuardedMemory::Access access;
  std::memcpy(copy.target, copy.source, copy.bytes);
  return absl::OkStatus();
}

absl::Status LateCopies::Finish(int64_t count) {
  const auto released = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !held_; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&released));
  if (fails_) {
    return absl::InternalError("device double: a copy has failed");
  }
  absl::Status status;
  for (; done_ < count; ++done_) {
    const Copy& copy = waiting_.front();
    status.Update(Do(copy));
    moved_bytes_ += copy.within_device ? static_cast<int64_t>(copy.bytes) : 0;
    waiting_.pop_front();
  }
  return status;
}

}  // namespace baton::kernels
