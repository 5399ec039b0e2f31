#include "tests/kernels/device_double/local_links.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/device_link.h"
#include "kernels/core/memory.h"
#include "tests/kernels/device_double/guarded_memory.h"

namespace baton::kernels {
namespace {

struct Move {
  size_t slot = 0;
  size_t size = 0;
  std::byte* data = nullptr;
  std::array<bool, DeviceLink::kSlots>* busy = nullptr;
};

// Both ends of a link.
struct Pair {
  absl::Mutex mutex;
  std::array<bool, 2> open ABSL_GUARDED_BY(mutex) = {};
  std::array<std::deque<Move>, 2> moves ABSL_GUARDED_BY(mutex);
  bool broken ABSL_GUARDED_BY(mutex) = false;
};

struct Pairs {
  absl::Mutex mutex;
  int next ABSL_GUARDED_BY(mutex) = 1;
  std::map<std::string, std::shared_ptr<Pair>> by_id ABSL_GUARDED_BY(mutex);
};

Pairs& AllPairs() {
  static Pairs& pairs = *new Pairs();
  return pairs;
}

void Copy(std::byte* target, const std::byte* source, size_t size) {
  const GuardedMemory::Access access;
  std::memcpy(target, source, size);
}

}  // namespace

class LocalLinks::Link final : public DeviceLink {
 public:
  Link(LocalLinks& links, std::shared_ptr<Pair> pair, LinkEnd end, size_t slot_bytes)
      : links_(links), pair_(std::move(pair)), end_(static_cast<size_t>(end)), size_(slot_bytes) {}
  ~Link() override {
    const absl::MutexLock lock(&pair_->mutex);
    pair_->open[end_] = false;
    pair_->moves[end_].clear();
  }

  absl::Status Bring() {
    for (Memory& slot : slots_) {
      absl::StatusOr<Memory> memory = links_.memory_.Allocate(size_);
      if (!memory.ok()) {
        return memory.status();
      }
      slot = *std::move(memory);
    }
    const absl::MutexLock lock(&pair_->mutex);
    pair_->open[end_] = true;
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Connected() override {
    const absl::MutexLock lock(&pair_->mutex);
    return pair_->open[0] && pair_->open[1];
  }
  std::span<const std::byte> slot(size_t index) const override {
    return {slots_[index].data(), size_};
  }
  absl::Status Load(size_t index, std::span<const std::span<const std::byte>> pieces) override {
    size_t loaded = 0;
    for (const std::span<const std::byte> piece : pieces) {
      Copy(slots_[index].data() + loaded, piece.data(), piece.size());
      loaded += piece.size();
    }
    links_.sent_bytes_ += static_cast<int64_t>(loaded);
    return absl::OkStatus();
  }
  absl::Status Send(size_t index, size_t size) override { return Start(index, size); }
  absl::Status Receive(size_t index, size_t size) override { return Start(index, size); }
  absl::StatusOr<bool> Idle(size_t index) override {
    const absl::MutexLock lock(&pair_->mutex);
    if (pair_->broken) {
      return absl::InternalError("the ends of the link named different sizes");
    }
    return !busy_[index];
  }

 private:
  absl::Status Start(size_t index, size_t size) {
    const absl::MutexLock lock(&pair_->mutex);
    if (busy_[index] || size > size_) {
      return absl::FailedPreconditionError(absl::StrCat("slot ", index, " is in use or too small"));
    }
    busy_[index] = true;
    if (!links_.frozen_) {
      pair_->moves[end_].push_back(
          {.slot = index, .size = size, .data = slots_[index].data(), .busy = &busy_});
    }
    auto& [sent, received] = pair_->moves;
    while (!sent.empty() && !received.empty()) {
      const Move from = sent.front();
      const Move to = received.front();
      pair_->broken = pair_->broken || from.size != to.size || from.slot != to.slot;
      Copy(to.data, from.data, std::min(from.size, to.size));
      (*from.busy)[from.slot] = false;
      (*to.busy)[to.slot] = false;
      sent.pop_front();
      received.pop_front();
    }
    return absl::OkStatus();
  }

  LocalLinks& links_;
  const std::shared_ptr<Pair> pair_;
  const size_t end_;
  const size_t size_;
  std::array<Memory, kSlots> slots_;
  std::array<bool, kSlots> busy_ = {};  // guarded by the pair's mutex
};

absl::StatusOr<std::string> LocalLinks::NewId() {
  Pairs& pairs = AllPairs();
  const absl::MutexLock lock(&pairs.mutex);
  std::string id = absl::StrCat("pair ", pairs.next++);
  pairs.by_id[id] = std::make_shared<Pair>();
  return id;
}

absl::StatusOr<std::unique_ptr<DeviceLink>> LocalLinks::Open(const std::string& id,
                                                             LinkEnd end,
                                                             const LinkSizes& sizes) {
  std::shared_ptr<Pair> pair;
  {
    Pairs& pairs = AllPairs();
    const absl::MutexLock lock(&pairs.mutex);
    const auto found = pairs.by_id.find(id);
    if (found == pairs.by_id.end()) {
      return absl::InvalidArgumentError("no id of a link");
    }
    pair = found->second;
  }
  auto link = std::make_unique<Link>(*this, pair, end, sizes.slot_bytes);
  if (absl::Status status = link->Bring(); !status.ok()) {
    return status;
  }
  return link;
}

}  // namespace baton::kernels
