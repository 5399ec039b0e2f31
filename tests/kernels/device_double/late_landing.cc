#include "tests/kernels/device_double/late_landing.h"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "tests/kernels/device_double/guarded_memory.h"

namespace baton::kernels {

LateLanding& LateLanding::Get() {
  static LateLanding* const kLanding = new LateLanding;
  return *kLanding;
}

absl::Status LateLanding::Write(std::byte* target, std::span<const std::byte> source) {
  const absl::MutexLock lock(&mutex_);
  written_.push_back({.target = target, .bytes = {source.begin(), source.end()}});
  return absl::OkStatus();
}

absl::Status LateLanding::Wait() {
  const absl::MutexLock lock(&mutex_);
  const std::vector<Written> written = std::exchange(written_, {});
  for (const Written& one : written) {
    const absl::Status status =
        GuardedMemory::Get().Upload(one.target, one.bytes.data(), one.bytes.size());
    if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status LateLanding::Read(std::span<std::byte> target, const std::byte* source) {
  return GuardedMemory::Get().Download(target.data(), source, target.size());
}

}  // namespace baton::kernels
