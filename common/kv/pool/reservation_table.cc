#include "common/kv/pool/reservation_table.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"

namespace baton::kv {

ReservationKey ReservationTable::Add(absl::Time now) {
  const ReservationKey key = {
      .reservation_id = next_id_++,
      .epoch = absl::Uniform<uint64_t>(
          absl::IntervalClosed, random_, 1, std::numeric_limits<uint64_t>::max())};
  entries_[key.reservation_id] = {
      .epoch = key.epoch, .newest_attempt = 0, .lease_end = now + lease_};
  return key;
}

absl::Status ReservationTable::Check(const ReservationKey& key, absl::Time now) const {
  const auto entry = entries_.find(key.reservation_id);
  if (entry == entries_.end() || entry->second.epoch != key.epoch) {
    return absl::FailedPreconditionError(
        absl::StrCat("STALE_EPOCH: reservation ",
                     key.reservation_id,
                     " is not open under this epoch; it has ended, was committed, or belongs to an "
                     "earlier life of this worker"));
  }
  if (entry->second.lease_end <= now) {
    return absl::FailedPreconditionError(
        absl::StrCat("STALE_EPOCH: the lease of reservation ", key.reservation_id, " has expired"));
  }
  return absl::OkStatus();
}

absl::Status ReservationTable::Renew(const ReservationKey& key, absl::Time now) {
  BATON_RETURN_IF_ERROR(Check(key, now));
  entries_[key.reservation_id].lease_end = now + lease_;
  return absl::OkStatus();
}

absl::Status ReservationTable::BeginAttempt(const ReservationKey& key,
                                            uint32_t attempt,
                                            absl::Time now) {
  BATON_RETURN_IF_ERROR(Check(key, now));
  Entry& entry = entries_[key.reservation_id];
  if (attempt < entry.newest_attempt) {
    return absl::FailedPreconditionError(absl::StrCat("attempt ",
                                                      attempt,
                                                      " of reservation ",
                                                      key.reservation_id,
                                                      " is superseded by attempt ",
                                                      entry.newest_attempt));
  }
  entry.newest_attempt = attempt;
  entry.lease_end = now + lease_;
  return absl::OkStatus();
}

absl::Status ReservationTable::CheckAttempt(const ReservationKey& key,
                                            uint32_t attempt,
                                            absl::Time now) const {
  BATON_RETURN_IF_ERROR(Check(key, now));
  const Entry& entry = entries_.at(key.reservation_id);
  if (attempt != entry.newest_attempt) {
    return absl::FailedPreconditionError(absl::StrCat("attempt ",
                                                      attempt,
                                                      " of reservation ",
                                                      key.reservation_id,
                                                      " is not the one that lands now (",
                                                      entry.newest_attempt,
                                                      ")"));
  }
  return absl::OkStatus();
}

std::vector<uint64_t> ReservationTable::Expired(absl::Time now) const {
  std::vector<uint64_t> ids;
  for (const auto& [id, entry] : entries_) {
    if (entry.lease_end <= now) {
      ids.push_back(id);
    }
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

absl::Time ReservationTable::NextExpiry() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, entry] : entries_) {
    next = std::min(next, entry.lease_end);
  }
  return next;
}

}  // namespace baton::kv
