// The device double's memory where ops are gathered.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/buffer.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/memory.h"
#include "kernels/core/op_graphs.h"
#include "tests/kernels/device_double/guarded_memory.h"

namespace baton::kernels {

// GuardedMemory whose copies come behind the ops that were called before them. Downloads, which the
// executor waits for, can be held.
class GatheringMemory final : public MemorySpace {
 public:
  // `graphs` is borrowed.
  explicit GatheringMemory(OpGraphs& graphs) : graphs_(graphs) {}

  bool is_host() const override { return false; }
  absl::StatusOr<Memory> Allocate(size_t bytes) override { return Device().Allocate(bytes); }
  absl::StatusOr<Memory> Adopt(Buffer source) override { return Device().Adopt(std::move(source)); }
  absl::Status Upload(std::byte* target, const void* source, size_t bytes) override {
    absl::Status status = graphs_.Flush();
    return status.ok() ? Device().Upload(target, source, bytes) : status;
  }
  absl::Status Download(void* target, const void* source, size_t bytes) override {
    absl::Status status = graphs_.Flush();
    AwaitRelease();
    return status.ok() ? Device().Download(target, source, bytes) : status;
  }
  absl::Status Copy(std::byte* target, const std::byte* source, size_t bytes) override {
    absl::Status status = graphs_.Flush();
    return status.ok() ? Device().Copy(target, source, bytes) : status;
  }
  absl::Status Zero(std::byte* target, size_t bytes) override {
    absl::Status status = graphs_.Flush();
    return status.ok() ? Device().Zero(target, bytes) : status;
  }
  MemorySpace* shared() override { return Device().shared(); }
  LandingMemory& landing() override { return Device().landing(); }

  // Any thread. Who downloads waits from now on, until Release.
  void HoldDownloads() { SetHeld(true); }
  void Release() { SetHeld(false); }
  // Until somebody does.
  void AwaitHeld() {
    absl::MutexLock lock(&mutex_);
    const auto held = [this]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return downloads_held_ > 0; };
    mutex_.Await(absl::Condition(&held));
  }

 private:
  void SetHeld(bool held) {
    absl::MutexLock lock(&mutex_);
    held_ = held;
  }
  void AwaitRelease() {
    absl::MutexLock lock(&mutex_);
    const auto released = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !held_; };
    ++downloads_held_;
    mutex_.Await(absl::Condition(&released));
    --downloads_held_;
  }
  static MemorySpace& Device() { return GuardedMemory::Get(); }

  OpGraphs& graphs_;
  absl::Mutex mutex_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  int downloads_held_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::kernels
