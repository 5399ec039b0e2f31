// Which requests' encoded KV prefill keeps, within a budget of bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/handoff/retain/retained_kv.h"
#include "common/metrics/registry.h"

namespace baton::handoff {

struct RetentionOptions {
  // Of KV and identities, those that are still being shipped or filled included; 0 keeps nothing.
  int64_t budget_bytes = 0;
  // Life of an entry that nobody looks up or releases: the backstop for a router that died.
  absl::Duration lease = absl::Minutes(10);
};

// An entry is filled, then complete, then acknowledged once decode has published the sequence. For
// room, acknowledged entries go first, then the others, least recently used first; never one that
// is being filled or that somebody ships. Thread-safe; nothing blocks but the lock, and callbacks
// run without it. The clock is an argument, so that tests own it.
class RetentionStore {
 public:
  // The KV, or null when there is none. Called once, from any thread.
  using Found = std::function<void(std::shared_ptr<const RetainedKv>)>;

  // `registry` is borrowed for the counters.
  RetentionStore(const RetentionOptions& options, metrics::Registry& registry);
  RetentionStore(const RetentionStore&) = delete;
  RetentionStore& operator=(const RetentionStore&) = delete;

  // Begins an entry, in place of an older one of the same request. Null when `expected_bytes` of KV
  // are over the budget. It is dropped at `deadline`, the end of its request, at the latest.
  std::shared_ptr<RetainedKv> Open(std::string request_id,
                                   std::string identity,
                                   int64_t expected_bytes,
                                   absl::Time deadline);
  // Makes room for `bytes` more of an entry that is being filled. False: there is none, or the
  // request has ended; the entry is forgotten.
  bool Charge(RetainedKv& entry, int64_t bytes);
  // The entry is whole: who waits for it gets it. Does nothing when it was forgotten.
  void Complete(const RetainedKv& entry, absl::Time now);
  // Decode has the sequence: the entry is kept for a resume only.
  void Acknowledge(const RetainedKv& entry);
  // Forgets the entry: who waits for it gets nothing.
  void Drop(const RetainedKv& entry);

  // The request's KV, now or as soon as it is complete. Null: there is none, or of another
  // identity. A hit begins the lease anew.
  void Find(const std::string& request_id,
            std::string_view identity,
            absl::Time now,
            const Found& found);
  // Whether the entry is still known.
  bool Holds(const RetainedKv& entry) const;
  // The request has ended.
  void Release(const std::string& request_id);
  // Drops complete entries whose lease or request ended before `now`.
  void Expire(absl::Time now);

  int64_t bytes() const { return *bytes_; }
  int64_t entries() const;

 private:
  struct Slot {
    std::shared_ptr<RetainedKv> kv;
    absl::Time deadline;
    absl::Time expires = absl::InfiniteFuture();  // once complete
    uint64_t used = 0;
    bool complete = false;
    bool acknowledged = false;
    std::vector<Found> waiting;
  };
  using Slots = std::unordered_map<std::string, Slot>;
  // Order of eviction: acknowledged before the others, then by last use.
  using Rank = std::pair<bool, uint64_t>;

  static Rank RankOf(const Slot& slot) { return {!slot.acknowledged, slot.used}; }
  // The slot of `entry` itself, not of a later one of its request; end() if there is none.
  Slots::iterator SlotOf(const RetainedKv& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Touch(Slot& slot, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the slot; its waiting calls are the caller's to answer.
  Slot Take(Slots::iterator slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool EvictOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells who waits for the slot that there is nothing.
  void AnswerNothing(const Slot& slot) const ABSL_LOCKS_EXCLUDED(mutex_);

  const RetentionOptions options_;
  metrics::Registry& registry_;
  const std::shared_ptr<std::atomic<int64_t>> bytes_ = std::make_shared<std::atomic<int64_t>>(0);
  mutable absl::Mutex mutex_;
  Slots slots_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<Rank, std::string>> evictable_ ABSL_GUARDED_BY(mutex_);  // complete ones
  uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::handoff
