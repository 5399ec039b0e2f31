// The router's one bounded queue: first come, first served, limited by requests, tokens and bytes.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>

#include "absl/status/status.h"

namespace baton::scheduling {

// What the queue may hold at once. A limit of 0 admits nothing.
struct QueueLimits {
  int64_t max_requests = 0;
  int64_t max_tokens = 0;
  int64_t max_bytes = 0;
};

// One waiting request and what it weighs.
struct QueueEntry {
  uint64_t id = 0;     // unique among the entries of one queue
  int64_t tokens = 0;  // prompt tokens
  int64_t bytes = 0;   // memory that the request holds while it waits
};

// What is queued now.
struct QueueTotals {
  int64_t requests = 0;
  int64_t tokens = 0;
  int64_t bytes = 0;
};

// Bounded FIFO of request ids (architecture.md section 3 step 1; test T32 of serving.md 3.3). A
// request that was dispatched and could not be placed returns to the head with PushFront, past the
// limits: it was admitted before and may not be lost. Not thread-safe.
class CentralQueue {
 public:
  explicit CentralQueue(const QueueLimits& limits) : limits_(limits) {}

  // Appends. kResourceExhausted names the limit that is full; kInvalidArgument: a request that is
  // larger than a limit by itself and would never be admitted; kAlreadyExists: id is queued.
  absl::Status PushBack(const QueueEntry& entry);
  // Puts a request back at the head, whatever the limits say. kAlreadyExists: id is queued.
  absl::Status PushFront(const QueueEntry& entry);

  // The next request to dispatch.
  std::optional<QueueEntry> Front() const;
  // Takes out the head.
  std::optional<QueueEntry> PopFront();
  // Takes out a request wherever it stands; false when it is not queued.
  bool Remove(uint64_t id);

  bool Contains(uint64_t id) const { return positions_.contains(id); }
  bool empty() const { return entries_.empty(); }
  const QueueTotals& totals() const { return totals_; }
  const QueueLimits& limits() const { return limits_; }

 private:
  using Entries = std::list<QueueEntry>;

  absl::Status CheckLimits(const QueueEntry& entry) const;
  absl::Status Insert(Entries::const_iterator before, const QueueEntry& entry);
  QueueEntry Erase(Entries::const_iterator position);

  const QueueLimits limits_;
  QueueTotals totals_;
  Entries entries_;
  std::unordered_map<uint64_t, Entries::const_iterator> positions_;
};

}  // namespace baton::scheduling
