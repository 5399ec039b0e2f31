// The bounds that a request meets before it becomes a command of the engine thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace baton::engine {

struct AdmissionLimits {
  int32_t max_waiting_requests = 0;
  int64_t max_waiting_tokens = 0;
};

struct WaitingLoad {
  int64_t requests = 0;
  int64_t tokens = 0;
};

// Knows every live request id and how much waits for prefill, so that Submit can answer "queue
// full", "draining" or "duplicate" at once. Thread-safe; callers enter on their own thread, the
// engine thread leaves. Live ids also bound the cancel commands that may be queued: one per live
// request.
class AdmissionGate {
 public:
  explicit AdmissionGate(const AdmissionLimits& limits) : limits_(limits) {}

  // A request joins the waiting queue with its prompt. Returns its serial number, unique in the
  // life of the engine. kUnavailable (DRAINING), kAlreadyExists for a live id, kResourceExhausted
  // (QUEUE_FULL).
  absl::StatusOr<uint64_t> EnterQueue(std::string_view request_id, int64_t prompt_tokens);
  // A reservation: as above without the queue's bounds.
  absl::StatusOr<uint64_t> Enter(std::string_view request_id);
  // The request no longer waits (admitted, or ended while waiting).
  void LeaveQueue(int64_t prompt_tokens);
  // The request has ended; its id may be used again.
  void Leave(std::string_view request_id);
  // Remembers the reason and returns the serial of a live request, the first time only: the caller
  // is the one to queue its cancel command.
  std::optional<uint64_t> MarkCancelled(std::string_view request_id, const absl::Status& reason);
  // The reason, when the live request was cancelled. A cancel may overtake the command that brings
  // the request, so that command looks here.
  std::optional<absl::Status> CancelReason(std::string_view request_id) const;

  void Drain();
  bool draining() const;
  WaitingLoad waiting() const;

 private:
  struct LiveRequest {
    uint64_t serial = 0;
    std::optional<absl::Status> cancelled;
  };

  uint64_t Add(std::string_view request_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckOpen(std::string_view request_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AdmissionLimits limits_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, LiveRequest> live_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_serial_ ABSL_GUARDED_BY(mutex_) = 1;
  WaitingLoad waiting_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::engine
