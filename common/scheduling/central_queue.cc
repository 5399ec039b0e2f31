#include "common/scheduling/central_queue.h"

#include <cstdint>
#include <optional>

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

absl::Status CentralQueue::Add(const QueueEntry& entry) {
  BATON_RETURN_IF_ERROR(CheckLimits(entry));
  return Return(entry);
}

absl::Status CentralQueue::Return(const QueueEntry& entry) {
  if (!entries_.emplace(entry.id, entry).second) {
    return absl::AlreadyExistsError(absl::StrCat("request ", entry.id, " is queued already"));
  }
  ++totals_.requests;
  totals_.tokens += entry.tokens;
  totals_.bytes += entry.bytes;
  return absl::OkStatus();
}

std::optional<QueueEntry> CentralQueue::Next(uint64_t id) const {
  const auto next = entries_.upper_bound(id);
  return next == entries_.end() ? std::nullopt : std::optional(next->second);
}

bool CentralQueue::Remove(uint64_t id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    return false;
  }
  --totals_.requests;
  totals_.tokens -= found->second.tokens;
  totals_.bytes -= found->second.bytes;
  entries_.erase(found);
  return true;
}

}  // namespace baton::scheduling
