// How bytes land in the device double's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/landing_memory.h"
#include "kernels/core/shared_blocks.h"

namespace baton::kernels {

// The latest that bytes may be there: they are written, and those of another process read, when
// they are waited for. Who looks at them before, finds out.
class LateLanding final : public LandingMemory {
 public:
  // Of GuardedMemory.
  static LateLanding& Get();

  bool is_host() const override { return false; }
  absl::Status Write(std::byte* target, std::span<const std::byte> source) override;
  absl::StatusOr<std::unique_ptr<SharedMapping>> Import(int fd, size_t size) override;
  absl::Status Pull(std::byte* target, std::span<const std::byte> source) override;
  absl::Status Wait() override;
  absl::StatusOr<uint64_t> WordSum(std::span<const std::span<const std::byte>> pieces) override;
  absl::Status ReadAll(std::span<const LandedRead> reads) override;

 private:
  struct Written {
    std::byte* target;
    std::vector<std::byte> bytes;
    std::span<const std::byte> pulled = {};  // instead of bytes
  };

  absl::Status WaitLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::vector<Written> written_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::kernels
