#include "kernels/core/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/host_blocks.h"
#include "kernels/core/memory.h"

namespace baton::kernels {
namespace {

class ReadOnlyFile final : public SharedBlock {
 public:
  ReadOnlyFile(uint32_t id, int fd, size_t size) : SharedBlock(id, fd, size) {}
  ~ReadOnlyFile() override { close(read_only_fd()); }
};

// The blocks there are, by where they are mapped.
class Blocks {
 public:
  static Blocks& Get() {
    static Blocks* const kBlocks = new Blocks;
    return *kBlocks;
  }

  uint32_t NextId() {
    const absl::MutexLock lock(&mutex_);
    return next_id_++;
  }
  void Add(const std::byte* begin, std::shared_ptr<const SharedBlock> block) {
    const absl::MutexLock lock(&mutex_);
    blocks_.emplace(begin, std::move(block));
  }
  void Remove(const std::byte* begin) {
    const absl::MutexLock lock(&mutex_);
    blocks_.erase(begin);
  }
  std::optional<SharedLocation> Find(std::span<const std::byte> bytes) const {
    const absl::MutexLock lock(&mutex_);
    auto block = blocks_.upper_bound(bytes.data());
    if (block == blocks_.begin()) {
      return std::nullopt;
    }
    --block;
    const auto offset = static_cast<size_t>(bytes.data() - block->first);
    if (offset >= block->second->size() || bytes.size() > block->second->size() - offset) {
      return std::nullopt;
    }
    return SharedLocation{.block = block->second, .offset = offset};
  }

 private:
  mutable absl::Mutex mutex_;
  uint32_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<const std::byte*, std::shared_ptr<const SharedBlock>, std::less<>> blocks_
      ABSL_GUARDED_BY(mutex_);
};

class MappedBlock final : public Memory::Block {
 public:
  MappedBlock(std::byte* begin, size_t size) : begin_(begin), size_(size) {}
  ~MappedBlock() override {
    Blocks::Get().Remove(begin_);
    munmap(begin_, size_);
  }

 private:
  std::byte* const begin_;
  const size_t size_;
};

absl::Status NoMemory(size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the host has no ", bytes, " bytes of shared memory left"));
}

// Seals the file at its size and maps it for writing; null when that can't be done.
std::byte* MapSealed(int fd, size_t bytes) {
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return nullptr;
  }
  void* const begin = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, /*offset=*/0);
  if (begin == MAP_FAILED) {
    return nullptr;
  }
  madvise(begin, bytes, MADV_HUGEPAGE);  // where the system has them for shared memory
  return static_cast<std::byte*>(begin);
}

class SharedSpace final : public HostBlockSpace {
 public:
  absl::StatusOr<Memory> Allocate(size_t bytes) override {
    if (bytes == 0) {
      return Memory();
    }
    const int fd = memfd_create("baton", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
      return NoMemory(bytes);
    }
    std::byte* const begin = MapSealed(fd, bytes);
    const int read_only_fd =
        begin == nullptr ? -1
                         : open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC);
    close(fd);  // the mapping keeps the memory
    if (begin == nullptr) {
      return NoMemory(bytes);
    }
    if (read_only_fd < 0) {
      munmap(begin, bytes);
      return absl::InternalError("shared memory can't be opened for reading: is /proc mounted?");
    }
    Blocks& blocks = Blocks::Get();
    blocks.Add(begin, std::make_shared<ReadOnlyFile>(blocks.NextId(), read_only_fd, bytes));
    return Memory(std::make_unique<MappedBlock>(begin, bytes), begin, bytes);
  }
};

}  // namespace

MemorySpace& SharedHostMemory() {
  static SharedSpace* const kSpace = new SharedSpace;
  return *kSpace;
}

std::optional<SharedLocation> FindShared(std::span<const std::byte> bytes) {
  return Blocks::Get().Find(bytes);
}

absl::StatusOr<SharedMapping> SharedMapping::Map(int fd, size_t size) {
  struct stat file = {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (size == 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &file) != 0 ||
      file.st_size < 0 || static_cast<uint64_t>(file.st_size) < size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no anonymous file of at least ", size, " bytes that is sealed against shrinking"));
  }
  void* const begin = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, /*offset=*/0);
  if (begin == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat(size, " bytes of another process can't be mapped"));
  }
  return SharedMapping(std::span(static_cast<const std::byte*>(begin), size));
}

SharedMapping::~SharedMapping() {
  if (!bytes_.empty()) {
    munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})) {}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace baton::kernels
