#include "tests/kernels/device_double/guarded_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/buffer.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/memory.h"
#include "kernels/core/shared_blocks.h"
#include "tests/kernels/device_double/late_landing.h"

namespace baton::kernels {
namespace {

constexpr size_t kBytes = size_t{1} << 30;
constexpr size_t kAlignment = 256;  // cudaMalloc's

class OwnMapping final : public SharedMapping {
 public:
  explicit OwnMapping(std::span<const std::byte> bytes) : SharedMapping(bytes) {}
};

}  // namespace

// Blocks lie one behind another; the range is used again once all of them are gone.
class GuardedMemory::Block final : public Memory::Block {
 public:
  // Allocate has counted it.
  ~Block() override {
    GuardedMemory& memory = Get();
    const absl::MutexLock lock(&memory.mutex_);
    if (--memory.blocks_ == 0) {
      memory.used_ = 0;
    }
  }
};

GuardedMemory& GuardedMemory::Get() {
  static GuardedMemory* const kMemory = new GuardedMemory;
  return *kMemory;
}

GuardedMemory::GuardedMemory() {
  void* const range =
      mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  const int fd = memfd_create("device double", MFD_CLOEXEC);
  if (range == MAP_FAILED || fd < 0) {
    std::abort();
  }
  // Opening and closing takes as long as there are pages.
  madvise(range, kBytes, MADV_HUGEPAGE);
  begin_ = static_cast<std::byte*>(range);
  shared_.emplace(begin_, std::make_shared<SharedBlock>(fd, kBytes, BlockKind::kDevice));
}

absl::StatusOr<std::unique_ptr<SharedMapping>> GuardedMemory::Import(int fd, size_t size) const {
  struct stat own = {};
  struct stat given = {};
  const auto location = FindShared({begin_, 1});
  if (size != kBytes || fstat(location->block->fd(), &own) != 0 || fstat(fd, &given) != 0 ||
      own.st_ino != given.st_ino) {
    return absl::InvalidArgumentError("no memory of this process's device");
  }
  return std::make_unique<OwnMapping>(std::span<const std::byte>(begin_, kBytes));
}

GuardedMemory::Access::Access() {
  GuardedMemory& memory = Get();
  const absl::MutexLock lock(&memory.mutex_);
  if (memory.open_++ == 0 && mprotect(memory.begin_, kBytes, PROT_READ | PROT_WRITE) != 0) {
    std::abort();
  }
}

GuardedMemory::Access::~Access() {
  GuardedMemory& memory = Get();
  const absl::MutexLock lock(&memory.mutex_);
  if (--memory.open_ == 0 && mprotect(memory.begin_, kBytes, PROT_NONE) != 0) {
    std::abort();
  }
}

absl::StatusOr<Memory> GuardedMemory::Allocate(size_t bytes) {
  const size_t taken = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::byte* data = nullptr;
  {
    const absl::MutexLock lock(&mutex_);
    if (fail_next_.exchange(false) || taken > kBytes - used_) {
      return absl::ResourceExhaustedError(absl::StrCat("the device has no ", bytes, " bytes left"));
    }
    data = begin_ + used_;
    used_ += taken;
    ++blocks_;
  }
  const Access access;
  std::memset(data, 0, bytes);
  return Memory(std::make_unique<Block>(), data, bytes);
}

absl::StatusOr<Memory> GuardedMemory::Adopt(Buffer source) {
  absl::StatusOr<Memory> memory = Allocate(source.size());
  if (memory.ok() && source.size() > 0) {
    const Access access;
    std::memcpy(memory->data(), source.data(), source.size());
  }
  return memory;
}

absl::Status GuardedMemory::Upload(std::byte* target, const void* source, size_t bytes) {
  ++uploads_;
  const Access access;
  std::memcpy(target, source, bytes);
  return absl::OkStatus();
}

absl::Status GuardedMemory::Download(void* target, const void* source, size_t bytes) {
  ++downloads_;
  const Access access;
  std::memcpy(target, source, bytes);
  return absl::OkStatus();
}

absl::Status GuardedMemory::Copy(std::byte* target, const std::byte* source, size_t bytes) {
  const Access access;
  std::memcpy(target, source, bytes);
  return absl::OkStatus();
}

absl::Status GuardedMemory::Zero(std::byte* target, size_t bytes) {
  const Access access;
  std::memset(target, 0, bytes);
  return absl::OkStatus();
}

LandingMemory& GuardedMemory::landing() { return LateLanding::Get(); }

int64_t GuardedMemory::blocks() const {
  const absl::MutexLock lock(&mutex_);
  return blocks_;
}

bool GuardedMemory::Contains(const void* address) const {
  const auto* const byte = static_cast<const std::byte*>(address);
  return byte >= begin_ && byte < begin_ + kBytes;
}

}  // namespace baton::kernels
