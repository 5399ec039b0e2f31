#include "common/scheduling/central_queue.h"

#include <string_view>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"

namespace baton::scheduling {
namespace {

absl::Status CheckLimit(const char* what, int64_t queued, int64_t added, int64_t limit) {
  if (added > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request has ", added, " ", what, "; the queue admits at most ", limit));
  }
  if (queued > limit - added) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", queued, " of ", limit, " ", what, " queued, ", added, " more"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CentralQueue::CheckLimits(const QueueEntry& entry) const {
  BATON_RETURN_IF_ERROR(CheckLimit("bytes", totals_.bytes, entry.bytes, limits_.max_bytes));
  BATON_RETURN_IF_ERROR(CheckLimit("tokens", totals_.tokens, entry.tokens, limits_.max_tokens));
  if (totals_.requests >= limits_.max_requests) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", totals_.requests, " of ", limits_.max_requests, " requests queued"));
  }
  return absl::OkStatus();
}

absl::Status CentralQueue::Insert(Entries::const_iterator before, const QueueEntry& entry) {
  if (positions_.contains(entry.id)) {
    return absl::AlreadyExistsError(absl::StrCat("request ", entry.id, " is queued already"));
  }
  positions_[entry.id] = entries_.insert(before, entry);
  ++totals_.requests;
  totals_.tokens += entry.tokens;
  totals_.bytes += entry.bytes;
  return absl::OkStatus();
}

absl::Status CentralQueue::PushBack(const QueueEntry& entry) {
  BATON_RETURN_IF_ERROR(CheckLimits(entry));
  return Insert(entries_.cend(), entry);
}

absl::Status CentralQueue::PushFront(const QueueEntry& entry) {
  return Insert(entries_.cbegin(), entry);
}

std::optional<QueueEntry> CentralQueue::Front() const {
  return entries_.empty() ? std::nullopt : std::optional<QueueEntry>(entries_.front());
}

QueueEntry CentralQueue::Erase(Entries::const_iterator position) {
  const QueueEntry entry = *position;
  positions_.erase(entry.id);
  entries_.erase(position);
  --totals_.requests;
  totals_.tokens -= entry.tokens;
  totals_.bytes -= entry.bytes;
  return entry;
}

std::optional<QueueEntry> CentralQueue::PopFront() {
  return entries_.empty() ? std::nullopt : std::optional<QueueEntry>(Erase(entries_.cbegin()));
}

bool CentralQueue::Remove(uint64_t id) {
  const auto found = positions_.find(id);
  if (found == positions_.end()) {
    return false;
  }
  Erase(found->second);
  return true;
}

}  // namespace baton::scheduling
