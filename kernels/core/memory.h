// Memory that the ops of a back end work on: the host's, or a device's own.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/buffer.h"

namespace baton::kernels {

class LandingMemory;

// An owned block of a back end's memory, aligned to at least 64 bytes. Only on the host may the
// bytes be looked at from outside of ops. Move-only; gives itself back. Not thread-safe.
class Memory {
 public:
  // What gives the block back when it is destroyed.
  class Block {
   public:
    virtual ~Block() = default;
  };

  Memory() = default;
  Memory(std::unique_ptr<Block> block, std::byte* data, size_t size)
      : block_(std::move(block)), data_(data), size_(size) {}
  Memory(Memory&& other) noexcept
      : block_(std::move(other.block_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    block_ = std::move(other.block_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::unique_ptr<Block> block_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Where blocks come from, and how bytes get there and back. Copies are ordered with the ops of the
// executor thread, to which everything but Allocate, Adopt, is_host, staging, shared and landing
// belongs.
class MemorySpace {
 public:
  virtual ~MemorySpace() = default;

  // Whether the host reads and writes this memory like its own: an op may then be given the host's
  // pointers.
  virtual bool is_host() const = 0;
  // A zeroed block; kResourceExhausted, saying how much was asked for, when there is none.
  virtual absl::StatusOr<Memory> Allocate(size_t bytes) = 0;
  // A block with the bytes of `source`.
  virtual absl::StatusOr<Memory> Adopt(Buffer source) = 0;
  // Copies from the host, behind the ops that were called before. `source` may be changed as soon
  // as it returns.
  virtual absl::Status Upload(std::byte* target, const void* source, size_t bytes) = 0;
  // Copies to the host once the ops that were called before are done, and waits for that.
  virtual absl::Status Download(void* target, const void* source, size_t bytes) = 0;
  // Copies inside this memory and that of staging(), between bytes that do not overlap, behind the
  // ops that were called before.
  virtual absl::Status Copy(std::byte* target, const std::byte* source, size_t bytes) = 0;
  // Fills with zero bytes, behind the ops that were called before.
  virtual absl::Status Zero(std::byte* target, size_t bytes) = 0;

  // Memory of the host, thread-safe like HostMemory(), from and to which a device copies by itself
  // (pinned; see copy_queue.h). Lives as long as the process.
  virtual MemorySpace& staging();
  // The same memory, in blocks that FindShared knows (shared_blocks.h). For few, large blocks. Null
  // where there is no such thing. Lives as long as the space.
  virtual MemorySpace* shared();
  // How bytes of other processes get into blocks of this space. Lives as long as the space.
  virtual LandingMemory& landing();
};

// The host's memory. Lives as long as the process; thread-safe.
MemorySpace& HostMemory();

}  // namespace baton::kernels
