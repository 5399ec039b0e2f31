// Who may write into reserved pages, and until when: reservation ids, epochs, attempts and leases.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace baton::kv {

// What a message about a reservation has to match.
struct ReservationKey {
  uint64_t reservation_id = 0;
  // Random per reservation, never 0. A worker that restarts hands out the same ids again; the epoch
  // tells a late message of an earlier life from a present one (serving.md 3.3, T14).
  uint64_t epoch = 0;
};

// The open reservations of a worker. Engine thread only. Times are arguments. An entry that is past
// its lease refuses every message even before Expired has been asked, so that an owner never renews
// what is about to be freed.
class ReservationTable {
 public:
  explicit ReservationTable(absl::Duration lease) : lease_(lease) {}

  // A new reservation whose lease starts at `now`.
  ReservationKey Add(absl::Time now);

  // OK when the key names an open reservation; else kFailedPrecondition with STALE_EPOCH in the
  // message (unknown, ended, committed, expired, or another epoch).
  absl::Status Check(const ReservationKey& key, absl::Time now) const;
  // Check, then a lease that starts again at `now`.
  absl::Status Renew(const ReservationKey& key, absl::Time now);
  // An attempt at landing starts: refused with kFailedPrecondition when a newer one was seen, so
  // the late messages of an abandoned prefill change nothing. Renews the lease.
  absl::Status BeginAttempt(const ReservationKey& key, uint32_t attempt, absl::Time now);
  // As BeginAttempt, for the message that ends an attempt: it must be the newest one.
  absl::Status CheckAttempt(const ReservationKey& key, uint32_t attempt, absl::Time now) const;

  // Ends a reservation: every later message about it is stale. Unknown ids are ignored.
  void Remove(uint64_t reservation_id) { entries_.erase(reservation_id); }
  // Ids whose lease has ended by `now`; they stay in the table until removed.
  std::vector<uint64_t> Expired(absl::Time now) const;
  // The earliest end of a lease, or InfiniteFuture.
  absl::Time NextExpiry() const;

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  absl::Duration lease() const { return lease_; }

 private:
  struct Entry {
    uint64_t epoch = 0;
    uint32_t newest_attempt = 0;
    absl::Time lease_end;
  };

  absl::Duration lease_;
  uint64_t next_id_ = 1;
  absl::BitGen random_;
  absl::flat_hash_map<uint64_t, Entry> entries_;
};

}  // namespace baton::kv
