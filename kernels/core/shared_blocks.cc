#include "kernels/core/shared_blocks.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton::kernels {
namespace {

uint32_t NextId() {
  static std::atomic<uint32_t> next_id = 1;
  return next_id++;
}

// The blocks there are, by where they lie.
class Ranges {
 public:
  static Ranges& Get() {
    static Ranges* const kRanges = new Ranges;
    return *kRanges;
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
  std::vector<std::shared_ptr<const SharedBlock>> All(BlockKind kind) const {
    std::vector<std::shared_ptr<const SharedBlock>> blocks;
    const absl::MutexLock lock(&mutex_);
    for (const auto& [begin, block] : blocks_) {
      if (block->kind() == kind) {
        blocks.push_back(block);
      }
    }
    return blocks;
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<const std::byte*, std::shared_ptr<const SharedBlock>, std::less<>> blocks_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace

SharedBlock::SharedBlock(int fd, size_t size, BlockKind kind)
    : id_(NextId()), fd_(fd), size_(size), kind_(kind) {}

SharedBlock::~SharedBlock() { close(fd_); }

SharedRange::SharedRange(const std::byte* begin, std::shared_ptr<const SharedBlock> block)
    : begin_(begin) {
  Ranges::Get().Add(begin, std::move(block));
}

SharedRange::~SharedRange() { Ranges::Get().Remove(begin_); }

std::optional<SharedLocation> FindShared(std::span<const std::byte> bytes) {
  return Ranges::Get().Find(bytes);
}

std::vector<std::shared_ptr<const SharedBlock>> SharedBlocks(BlockKind kind) {
  std::vector<std::shared_ptr<const SharedBlock>> blocks = Ranges::Get().All(kind);
  std::sort(
      blocks.begin(), blocks.end(), [](const auto& a, const auto& b) { return a->id() < b->id(); });
  return blocks;
}

}  // namespace baton::kernels
