#include "common/engine/admission_gate.h"

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::engine {
namespace {

absl::string_view Abseil(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

absl::Status AdmissionGate::CheckOpen(std::string_view request_id) const {
  if (draining_) {
    return absl::UnavailableError("DRAINING: this worker takes no new requests; use another one");
  }
  if (live_.contains(Abseil(request_id))) {
    return absl::AlreadyExistsError(
        absl::StrCat("request_id ", Abseil(request_id), " is already running on this worker"));
  }
  return absl::OkStatus();
}

uint64_t AdmissionGate::Add(std::string_view request_id) {
  const uint64_t serial = next_serial_++;
  live_.emplace(request_id, LiveRequest{.serial = serial, .cancelled = std::nullopt});
  return serial;
}

absl::StatusOr<uint64_t> AdmissionGate::EnterQueue(std::string_view request_id,
                                                   int64_t prompt_tokens) {
  absl::MutexLock lock(&mutex_);
  BATON_RETURN_IF_ERROR(CheckOpen(request_id));
  if (waiting_.requests >= limits_.max_waiting_requests ||
      waiting_.tokens + prompt_tokens > limits_.max_waiting_tokens) {
    return absl::ResourceExhaustedError(absl::StrCat("QUEUE_FULL: ",
                                                     waiting_.requests,
                                                     " requests with ",
                                                     waiting_.tokens,
                                                     " prompt tokens wait; the limits are ",
                                                     limits_.max_waiting_requests,
                                                     " requests and ",
                                                     limits_.max_waiting_tokens,
                                                     " tokens; retry later"));
  }
  waiting_.requests += 1;
  waiting_.tokens += prompt_tokens;
  return Add(request_id);
}

absl::StatusOr<uint64_t> AdmissionGate::Enter(std::string_view request_id) {
  absl::MutexLock lock(&mutex_);
  BATON_RETURN_IF_ERROR(CheckOpen(request_id));
  return Add(request_id);
}

void AdmissionGate::LeaveQueue(int64_t prompt_tokens) {
  absl::MutexLock lock(&mutex_);
  waiting_.requests -= 1;
  waiting_.tokens -= prompt_tokens;
  BATON_CHECK(waiting_.requests >= 0 && waiting_.tokens >= 0);
}

void AdmissionGate::Leave(std::string_view request_id) {
  absl::MutexLock lock(&mutex_);
  BATON_CHECK(live_.erase(Abseil(request_id)) == 1);
}

std::optional<uint64_t> AdmissionGate::MarkCancelled(std::string_view request_id,
                                                     const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  const auto entry = live_.find(Abseil(request_id));
  if (entry == live_.end() || entry->second.cancelled.has_value()) {
    return std::nullopt;
  }
  entry->second.cancelled = reason;
  return entry->second.serial;
}

std::optional<absl::Status> AdmissionGate::CancelReason(std::string_view request_id) const {
  absl::MutexLock lock(&mutex_);
  const auto entry = live_.find(Abseil(request_id));
  return entry == live_.end() ? std::nullopt : entry->second.cancelled;
}

void AdmissionGate::Drain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

bool AdmissionGate::draining() const {
  absl::MutexLock lock(&mutex_);
  return draining_;
}

WaitingLoad AdmissionGate::waiting() const {
  absl::MutexLock lock(&mutex_);
  return waiting_;
}

}  // namespace baton::engine
