#include "common/kv/codec/block_cache.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/memory.h"

namespace baton::kv {
namespace {

// The least that a device hands out without waste.
constexpr size_t kLeastBytes = 4096;
// Free blocks beyond this go back to the device: the block that the score sums of a prompt of 128k
// tokens take in a model of 32 layers with 8 KV heads.
constexpr size_t kMostFreeBytes = size_t{256} << 20;
// Sizes of blocks from one power of two to the next.
constexpr size_t kSizes = 8;

// The least size of a block that has so many bytes.
size_t BlockBytes(size_t bytes) {
  const size_t step = std::max(std::bit_ceil(bytes) / (2 * kSizes), kLeastBytes);
  return std::max<size_t>(1, (bytes + step - 1) / step) * step;
}

}  // namespace

BlockCache::Block& BlockCache::Block::operator=(Block&& other) noexcept {
  if (this != &other) {
    GiveBack();
    cache_ = std::exchange(other.cache_, nullptr);
    memory_ = std::move(other.memory_);
  }
  return *this;
}

void BlockCache::Block::GiveBack() {
  if (cache_ != nullptr) {
    std::exchange(cache_, nullptr)->GiveBack(std::move(memory_));
  }
}

absl::StatusOr<BlockCache::Block> BlockCache::Take(size_t bytes) {
  const size_t size = BlockBytes(bytes);
  if (kernels::Memory memory = TakeFree(size); memory.data() != nullptr) {
    return Block(*this, std::move(memory));
  }
  absl::StatusOr<kernels::Memory> memory = space_.Allocate(size);
  if (!memory.ok()) {
    DropFree();
    memory = space_.Allocate(size);
  }
  if (!memory.ok()) {
    return memory.status();
  }
  return Block(*this, *std::move(memory));
}

kernels::Memory BlockCache::TakeFree(size_t size) {
  const absl::MutexLock lock(&mutex_);
  const auto found = free_.lower_bound(size);
  if (found == free_.end() || found->first > 2 * size) {
    return {};
  }
  kernels::Memory memory = std::move(found->second.back());
  found->second.pop_back();
  free_bytes_ -= found->first;
  if (found->second.empty()) {
    free_.erase(found);
  }
  return memory;
}

void BlockCache::GiveBack(kernels::Memory memory) {
  const absl::MutexLock lock(&mutex_);
  const size_t size = memory.size();
  if (free_bytes_ + size > kMostFreeBytes) {
    return;
  }
  free_bytes_ += size;
  free_[size].push_back(std::move(memory));
}

void BlockCache::DropFree() {
  std::map<size_t, std::vector<kernels::Memory>> dropped;
  const absl::MutexLock lock(&mutex_);
  dropped.swap(free_);
  free_bytes_ = 0;
}

}  // namespace baton::kv
