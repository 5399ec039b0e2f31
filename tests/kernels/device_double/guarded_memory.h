// Memory that the host can't look at, as a device's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/memory.h"
#include "kernels/core/shared_blocks.h"

namespace baton::kernels {

// An address range of the process that is neither readable nor writable but during a copy or an op
// of the device double: who touches it from elsewhere ends with a segmentation fault that names the
// line. One per process, and one shared block for workers in this process; thread-safe, but what
// one thread opens is open to all.
class GuardedMemory final : public MemorySpace {
 public:
  static GuardedMemory& Get();

  bool is_host() const override { return false; }
  absl::StatusOr<Memory> Allocate(size_t bytes) override;
  absl::StatusOr<Memory> Adopt(Buffer source) override;
  absl::Status Upload(std::byte* target, const void* source, size_t bytes) override;
  absl::Status Download(void* target, const void* source, size_t bytes) override;
  absl::Status Copy(std::byte* target, const std::byte* source, size_t bytes) override;
  absl::Status Zero(std::byte* target, size_t bytes) override;
  MemorySpace* shared() override { return this; }
  LandingMemory& landing() override;

  // LandingMemory::Import of that block: bytes where they are.
  absl::StatusOr<std::unique_ptr<SharedMapping>> Import(int fd, size_t size) const;

  bool Contains(const void* address) const;
  // Blocks that are owned now, and copies from and to the host so far.
  int64_t blocks() const;
  int64_t uploads() const { return uploads_.load(); }
  int64_t downloads() const { return downloads_.load(); }
  // The next Allocate finds no memory.
  void FailNext() { fail_next_.store(true); }

  // Opens the range while it lives; may be nested.
  class Access {
   public:
    Access();
    ~Access();
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;
  };

 private:
  class Block;

  GuardedMemory();

  std::byte* begin_ = nullptr;
  std::optional<SharedRange> shared_;  // all of it
  mutable absl::Mutex mutex_;
  size_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t blocks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> uploads_ = 0;
  std::atomic<int64_t> downloads_ = 0;
  std::atomic<bool> fail_next_ = false;
};

}  // namespace baton::kernels
