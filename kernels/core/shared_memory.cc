#include "kernels/core/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/host_blocks.h"
#include "kernels/core/memory.h"
#include "kernels/core/shared_blocks.h"

namespace baton::kernels {
namespace {

// Unmaps what was mapped.
class Mapped {
 public:
  Mapped(void* begin, size_t size) : begin_(begin), size_(size) {}
  ~Mapped() { munmap(begin_, size_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

 private:
  void* const begin_;
  const size_t size_;
};

// Forgotten first, since what is mapped next may lie there too.
class MappedBlock final : public Memory::Block {
 public:
  MappedBlock(std::byte* begin, int read_only_fd, size_t size)
      : mapped_(begin, size),
        range_(begin, std::make_shared<SharedBlock>(read_only_fd, size, BlockKind::kHost)) {}

 private:
  const Mapped mapped_;
  const SharedRange range_;
};

class HostMapping final : public SharedMapping {
 public:
  HostMapping(void* begin, size_t size)
      : SharedMapping({static_cast<const std::byte*>(begin), size}), mapped_(begin, size) {}

 private:
  const Mapped mapped_;
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
    return Memory(std::make_unique<MappedBlock>(begin, read_only_fd, bytes), begin, bytes);
  }
};

}  // namespace

MemorySpace& SharedHostMemory() {
  static SharedSpace* const kSpace = new SharedSpace;
  return *kSpace;
}

absl::StatusOr<std::unique_ptr<SharedMapping>> MapShared(int fd, size_t size) {
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
  return std::make_unique<HostMapping>(begin, size);
}

}  // namespace baton::kernels
