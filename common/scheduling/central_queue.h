// The router's one bounded queue: first come, first served, limited by requests, tokens and bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

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
  uint64_t id = 0;     // unique, not 0, and greater than those of requests that arrived before
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
// request that was dispatched and could not be placed returns to where it stood, before all that
// arrived later: of many that are refused at a time, whose refusals come in any order, none is
// overtaken again and again. Not thread-safe.
class CentralQueue {
 public:
  explicit CentralQueue(const QueueLimits& limits) : limits_(limits) {}

  // A request that arrives. kResourceExhausted names the limit that is full; kInvalidArgument: a
  // request that is larger than a limit by itself and would never be admitted; kAlreadyExists: id
  // is queued.
  absl::Status Add(const QueueEntry& entry);
  // A request that was taken out, whatever the limits say: it was admitted before and may not be
  // lost. kAlreadyExists: id is queued.
  absl::Status Return(const QueueEntry& entry);

  // The first request that arrived after request `id`, which need not be queued; 0: the head.
  std::optional<QueueEntry> Next(uint64_t id) const;
  // Takes out a request wherever it stands; false when it is not queued.
  bool Remove(uint64_t id);

  bool Contains(uint64_t id) const { return entries_.contains(id); }
  bool empty() const { return entries_.empty(); }
  const QueueTotals& totals() const { return totals_; }
  const QueueLimits& limits() const { return limits_; }

 private:
  using Entries = std::map<uint64_t, QueueEntry>;  // by id, and so by arrival

  absl::Status CheckLimits(const QueueEntry& entry) const;

  const QueueLimits limits_;
  QueueTotals totals_;
  Entries entries_;
};

}  // namespace baton::scheduling
