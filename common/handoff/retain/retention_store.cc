#include "common/handoff/retain/retention_store.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"

#include "common/handoff/retain/retained_kv.h"
#include "common/metrics/metric_families.h"
#include "common/metrics/registry.h"

namespace baton::handoff {

RetentionStore::RetentionStore(const RetentionOptions& options, metrics::Registry& registry)
    : options_(options), registry_(registry) {
  for (const std::string_view outcome : {"hit", "miss"}) {
    registry_.Get(metrics::kKvRetainedLookups, {outcome});
  }
  for (const std::string_view reason : {"acknowledged", "unacknowledged", "no_room", "expired"}) {
    registry_.Get(metrics::kKvRetainedEvictions, {reason});
  }
}

RetentionStore::Slots::iterator RetentionStore::SlotOf(const RetainedKv& entry) {
  const auto found = slots_.find(entry.request_id);
  return found != slots_.end() && found->second.kv.get() == &entry ? found : slots_.end();
}

void RetentionStore::Touch(Slot& slot, absl::Time now) {
  evictable_.erase({RankOf(slot), slot.kv->request_id});
  slot.used = ++uses_;
  slot.expires = std::min(slot.deadline, now + options_.lease);
  evictable_.emplace(RankOf(slot), slot.kv->request_id);
}

RetentionStore::Slot RetentionStore::Take(Slots::iterator slot) {
  Slot taken = std::move(slot->second);
  evictable_.erase({RankOf(taken), taken.kv->request_id});
  slots_.erase(slot);
  return taken;
}

void RetentionStore::AnswerNothing(const Slot& slot) const {
  for (const Found& found : slot.waiting) {
    registry_.Get(metrics::kKvRetainedLookups, {"miss"}).Increment();
    found(nullptr);
  }
}

std::shared_ptr<RetainedKv> RetentionStore::Open(std::string request_id,
                                                 std::string identity,
                                                 int64_t expected_bytes,
                                                 absl::Time deadline) {
  const auto identity_bytes = static_cast<int64_t>(identity.size());
  if (expected_bytes > options_.budget_bytes - identity_bytes) {
    return nullptr;
  }
  auto kv = std::make_shared<RetainedKv>(bytes_);
  kv->request_id = std::move(request_id);
  kv->identity = std::move(identity);
  Slot older;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = slots_.find(kv->request_id); found != slots_.end()) {
      older = Take(found);
    }
    Slot& slot = slots_[kv->request_id];
    slot.kv = kv;
    slot.deadline = deadline;
  }
  AnswerNothing(older);
  return Charge(*kv, identity_bytes) ? kv : nullptr;
}

bool RetentionStore::EvictOne() {
  for (const auto& [rank, request_id] : evictable_) {
    const auto slot = slots_.find(request_id);
    if (slot->second.kv.use_count() > 1) {
      continue;  // being shipped
    }
    registry_
        .Get(metrics::kKvRetainedEvictions,
             {slot->second.acknowledged ? "acknowledged" : "unacknowledged"})
        .Increment();
    Take(slot);
    return true;
  }
  return false;
}

bool RetentionStore::Charge(RetainedKv& entry, int64_t bytes) {
  Slot forgotten;
  {
    absl::MutexLock lock(&mutex_);
    const auto slot = SlotOf(entry);
    if (slot == slots_.end()) {
      return false;
    }
    while (*bytes_ + bytes > options_.budget_bytes && EvictOne()) {
    }
    if (*bytes_ + bytes <= options_.budget_bytes) {
      entry.charge.Add(bytes);
      return true;
    }
    registry_.Get(metrics::kKvRetainedEvictions, {"no_room"}).Increment();
    forgotten = Take(slot);
  }
  AnswerNothing(forgotten);
  return false;
}

void RetentionStore::Complete(const RetainedKv& entry, absl::Time now) {
  std::vector<Found> waiting;
  std::shared_ptr<const RetainedKv> kv;
  {
    absl::MutexLock lock(&mutex_);
    const auto slot = SlotOf(entry);
    if (slot == slots_.end()) {
      return;
    }
    slot->second.complete = true;
    Touch(slot->second, now);
    waiting.swap(slot->second.waiting);
    kv = slot->second.kv;
  }
  for (const Found& found : waiting) {
    registry_.Get(metrics::kKvRetainedLookups, {"hit"}).Increment();
    found(kv);
  }
}

void RetentionStore::Acknowledge(const RetainedKv& entry) {
  absl::MutexLock lock(&mutex_);
  const auto slot = SlotOf(entry);
  if (slot == slots_.end()) {
    return;
  }
  const size_t ranked = evictable_.erase({RankOf(slot->second), entry.request_id});
  slot->second.acknowledged = true;
  if (ranked > 0) {
    evictable_.emplace(RankOf(slot->second), entry.request_id);
  }
}

void RetentionStore::Drop(const RetainedKv& entry) {
  Slot dropped;
  {
    absl::MutexLock lock(&mutex_);
    const auto slot = SlotOf(entry);
    if (slot == slots_.end()) {
      return;
    }
    dropped = Take(slot);
  }
  AnswerNothing(dropped);
}

void RetentionStore::Find(const std::string& request_id,
                          std::string_view identity,
                          absl::Time now,
                          const Found& found) {
  std::shared_ptr<const RetainedKv> kv;
  {
    absl::MutexLock lock(&mutex_);
    const auto slot = slots_.find(request_id);
    if (slot != slots_.end() && slot->second.kv->identity == identity) {
      if (!slot->second.complete) {
        slot->second.waiting.push_back(found);
        return;
      }
      Touch(slot->second, now);
      kv = slot->second.kv;
    }
  }
  registry_.Get(metrics::kKvRetainedLookups, {kv == nullptr ? "miss" : "hit"}).Increment();
  found(std::move(kv));
}

bool RetentionStore::Holds(const RetainedKv& entry) const {
  absl::MutexLock lock(&mutex_);
  const auto found = slots_.find(entry.request_id);
  return found != slots_.end() && found->second.kv.get() == &entry;
}

void RetentionStore::Release(const std::string& request_id) {
  Slot released;
  {
    absl::MutexLock lock(&mutex_);
    const auto slot = slots_.find(request_id);
    if (slot == slots_.end()) {
      return;
    }
    released = Take(slot);
  }
  AnswerNothing(released);
}

void RetentionStore::Expire(absl::Time now) {
  std::vector<Slot> expired;  // their memory goes without the lock
  {
    absl::MutexLock lock(&mutex_);
    for (auto slot = slots_.begin(); slot != slots_.end();) {
      const auto next = std::next(slot);
      if (slot->second.complete && slot->second.expires <= now) {
        registry_.Get(metrics::kKvRetainedEvictions, {"expired"}).Increment();
        expired.push_back(Take(slot));
      }
      slot = next;
    }
  }
}

int64_t RetentionStore::entries() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(slots_.size());
}

}  // namespace baton::handoff
