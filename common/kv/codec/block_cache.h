// Blocks of a back end's memory that are handed out again and again.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/memory.h"

namespace baton::kv {

// Memory for what ops read and write of a sequence besides its pages. A device hands out a block
// slowly, and takes one back only when it has nothing to do: so blocks are kept, in sizes that are
// at most an eighth apart, and serve what is at least half as large. Thread-safe; outlives its
// blocks.
class BlockCache {
 public:
  // Move-only; goes back to the cache. Ops that were called before may still work on it then: what
  // its next owner calls comes behind them.
  class Block {
   public:
    Block() = default;
    Block(BlockCache& cache, kernels::Memory memory) : cache_(&cache), memory_(std::move(memory)) {}
    Block(Block&& other) noexcept
        : cache_(std::exchange(other.cache_, nullptr)), memory_(std::move(other.memory_)) {}
    Block& operator=(Block&& other) noexcept;
    ~Block() { GiveBack(); }

    bool empty() const { return cache_ == nullptr; }
    template <typename T>
    T* as() const {
      return memory_.as<T>();
    }
    std::byte* data() const { return memory_.data(); }
    size_t size() const { return memory_.size(); }

   private:
    void GiveBack();

    BlockCache* cache_ = nullptr;
    kernels::Memory memory_;
  };

  // `space` is borrowed.
  explicit BlockCache(kernels::MemorySpace& space) : space_(space) {}
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // At least so many bytes, which hold anything. kResourceExhausted when there is no memory.
  absl::StatusOr<Block> Take(size_t bytes);

 private:
  // The smallest of the free blocks of this size and up to twice as large ones; empty without one.
  kernels::Memory TakeFree(size_t size);
  void GiveBack(kernels::Memory memory);
  void DropFree();

  kernels::MemorySpace& space_;
  absl::Mutex mutex_;
  std::map<size_t, std::vector<kernels::Memory>> free_ ABSL_GUARDED_BY(mutex_);  // by size
  size_t free_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::kv
