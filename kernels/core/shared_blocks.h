// Memory of this process that others of the machine may read in place, and theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace baton::kernels {

// Whose memory a block is.
enum class BlockKind : uint8_t { kHost = 0, kDevice = 1 };

// A block that has a descriptor by which a process that gets it can map it. Immutable; closes the
// descriptor.
class SharedBlock {
 public:
  SharedBlock(int fd, size_t size, BlockKind kind);
  ~SharedBlock();
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;

  // Unique in this process and never used again; not 0.
  uint32_t id() const { return id_; }
  int fd() const { return fd_; }
  size_t size() const { return size_; }
  BlockKind kind() const { return kind_; }

 private:
  const uint32_t id_;
  const int fd_;
  const size_t size_;
  const BlockKind kind_;
};

// While it lives, FindShared knows that the block lies at `begin`. Thread-safe.
class SharedRange {
 public:
  SharedRange(const std::byte* begin, std::shared_ptr<const SharedBlock> block);
  ~SharedRange();
  SharedRange(const SharedRange&) = delete;
  SharedRange& operator=(const SharedRange&) = delete;

 private:
  const std::byte* const begin_;
};

struct SharedLocation {
  std::shared_ptr<const SharedBlock> block;
  uint64_t offset = 0;
};

// Where `bytes` lie in a block; nothing when they are elsewhere. Thread-safe.
std::optional<SharedLocation> FindShared(std::span<const std::byte> bytes);

// The blocks that there are of a kind, oldest first. Thread-safe.
std::vector<std::shared_ptr<const SharedBlock>> SharedBlocks(BlockKind kind);

// Another process's block, mapped for reading while it lives. What that process writes shows up at
// any time, so that bytes are to be copied before they are looked at. Immutable.
class SharedMapping {
 public:
  virtual ~SharedMapping() = default;
  // Of the host or of a device, as the block is.
  std::span<const std::byte> bytes() const { return bytes_; }

 protected:
  explicit SharedMapping(std::span<const std::byte> bytes) : bytes_(bytes) {}

 private:
  const std::span<const std::byte> bytes_;
};

}  // namespace baton::kernels
