// Host memory that other processes of the machine may read in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/memory.h"

namespace baton::kernels {

// A block of SharedHostMemory(): an anonymous file (memfd) that can't shrink, so that who maps it
// never meets its end. The descriptor is open as long as the object. Thread-safe.
class SharedBlock {
 public:
  virtual ~SharedBlock() = default;
  // Unique in this process and never used again; not 0.
  uint32_t id() const { return id_; }
  // Gives a process that gets it read access.
  int read_only_fd() const { return read_only_fd_; }
  size_t size() const { return size_; }

 protected:
  SharedBlock(uint32_t id, int read_only_fd, size_t size)
      : id_(id), read_only_fd_(read_only_fd), size_(size) {}

 private:
  const uint32_t id_;
  const int read_only_fd_;
  const size_t size_;
};

// Like HostMemory(), in blocks that FindShared knows. For few, large blocks: each takes two
// descriptors and whole pages. Lives as long as the process; thread-safe.
MemorySpace& SharedHostMemory();

struct SharedLocation {
  std::shared_ptr<const SharedBlock> block;
  uint64_t offset = 0;
};

// Where `bytes` lie in a block of SharedHostMemory(); nothing when they are elsewhere. Thread-safe.
std::optional<SharedLocation> FindShared(std::span<const std::byte> bytes);

// Another process's block, mapped for reading. What that process writes shows up at any time, so
// that bytes are to be copied before they are looked at. Move-only; immutable.
class SharedMapping {
 public:
  // `fd` is borrowed. kInvalidArgument when it is not a sealed anonymous file of at least `size`
  // bytes; kResourceExhausted when it can't be mapped.
  static absl::StatusOr<SharedMapping> Map(int fd, size_t size);
  ~SharedMapping();
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit SharedMapping(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace baton::kernels
