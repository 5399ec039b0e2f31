#include "tests/kernels/device_double/late_landing.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/landing_memory.h"
#include "kernels/core/shared_blocks.h"
#include "kernels/core/word_sum.h"
#include "tests/kernels/device_double/guarded_memory.h"

namespace baton::kernels {

LateLanding& LateLanding::Get() {
  static LateLanding* const kLanding = new LateLanding;
  return *kLanding;
}

absl::Status LateLanding::Write(std::byte* target, std::span<const std::byte> source) {
  const absl::MutexLock lock(&mutex_);
  written_.push_back({.target = target, .bytes = {source.begin(), source.end()}, .pulled = {}});
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SharedMapping>> LateLanding::Import(int fd, size_t size) {
  return GuardedMemory::Get().Import(fd, size);
}

absl::Status LateLanding::Pull(std::byte* target, std::span<const std::byte> source) {
  const absl::MutexLock lock(&mutex_);
  written_.push_back({.target = target, .bytes = {}, .pulled = source});
  return absl::OkStatus();
}

absl::Status LateLanding::Wait() {
  const absl::MutexLock lock(&mutex_);
  return WaitLocked();
}

absl::Status LateLanding::WaitLocked() {
  const std::vector<Written> written = std::exchange(written_, {});
  const GuardedMemory::Access access;  // where it is pulled from, too
  for (const Written& one : written) {
    const std::span<const std::byte> source = one.bytes.empty() ? one.pulled : one.bytes;
    const absl::Status status =
        GuardedMemory::Get().Upload(one.target, source.data(), source.size());
    if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> LateLanding::WordSum(std::span<const std::span<const std::byte>> pieces) {
  const absl::MutexLock lock(&mutex_);
  const absl::Status status = WaitLocked();
  const GuardedMemory::Access access;
  return status.ok() ? AddWords(pieces) : status;
}

absl::Status LateLanding::ReadAll(std::span<const LandedRead> reads) {
  absl::Status status;
  for (const LandedRead& read : reads) {
    status.Update(
        GuardedMemory::Get().Download(read.target.data(), read.source, read.target.size()));
  }
  return status;
}

}  // namespace baton::kernels
