// How bytes land in the device double's memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/landing_memory.h"

namespace baton::kernels {

// The latest that bytes may be there: they are written when they are waited for. Who looks at them
// before, finds out.
class LateLanding final : public LandingMemory {
 public:
  // Of GuardedMemory.
  static LateLanding& Get();

  bool is_host() const override { return false; }
  absl::Status Write(std::byte* target, std::span<const std::byte> source) override;
  absl::Status Wait() override;
  absl::Status Read(std::span<std::byte> target, const std::byte* source) override;

 private:
  struct Written {
    std::byte* target;
    std::vector<std::byte> bytes;
  };

  absl::Mutex mutex_;
  std::vector<Written> written_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::kernels
