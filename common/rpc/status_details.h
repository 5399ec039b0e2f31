// Machine-readable details of an error, carried as payloads of an absl::Status in the form that
// goes over the wire (google.rpc, AIP-193); which situation has which: serving.md 7.3.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace baton::rpc {

// ErrorInfo.reason values. A client may switch on them; the message is for people.
namespace reason {
inline constexpr std::string_view kPromptTooLong = "PROMPT_TOO_LONG";
inline constexpr std::string_view kExceedsCapacity = "EXCEEDS_CAPACITY";
inline constexpr std::string_view kKvPoolFull = "KV_POOL_FULL";
inline constexpr std::string_view kSequencesFull = "SEQUENCES_FULL";
inline constexpr std::string_view kQueueFull = "QUEUE_FULL";
inline constexpr std::string_view kAnswerTooLarge = "ANSWER_TOO_LARGE";
inline constexpr std::string_view kDraining = "DRAINING";
inline constexpr std::string_view kNoEndpoints = "NO_ENDPOINTS";
inline constexpr std::string_view kPrefillLost = "PREFILL_LOST";
inline constexpr std::string_view kDecodeLost = "DECODE_LOST";
inline constexpr std::string_view kStaleEpoch = "STALE_EPOCH";
inline constexpr std::string_view kLayoutMismatch = "LAYOUT_MISMATCH";
inline constexpr std::string_view kWrongRole = "WRONG_ROLE";
inline constexpr std::string_view kSlowReader = "SLOW_READER";
inline constexpr std::string_view kDeadline = "DEADLINE";
inline constexpr std::string_view kPolicyNotServed = "POLICY_NOT_SERVED";
inline constexpr std::string_view kUnknownModel = "UNKNOWN_MODEL";
inline constexpr std::string_view kDuplicateRequest = "DUPLICATE_REQUEST";
}  // namespace reason

// ErrorInfo.domain of everything that Baton itself reports.
inline constexpr std::string_view kErrorDomain = "baton";

struct FieldViolation {
  std::string field;
  std::string description;
};

// kInvalidArgument "field: message" with a BadRequest that names `field` (a path such as
// "sampling.top_p").
absl::Status InvalidField(std::string_view field, std::string_view message);

// `status` with an ErrorInfo of `reason`; replaces an earlier one. OK stays OK.
absl::Status WithReason(absl::Status status,
                        std::string_view reason,
                        const std::map<std::string, std::string>& metadata = {});

// `status` with a RetryInfo: the same request may succeed after `retry_after`. A refusal without
// one is not to be retried (serving.md 7.3).
absl::Status WithRetry(absl::Status status, absl::Duration retry_after);

// Full now, free later: kResourceExhausted with reason and RetryInfo.
absl::Status ResourceExhausted(std::string_view reason,
                               std::string_view message,
                               absl::Duration retry_after);

// Nobody to serve it now: kUnavailable with reason and RetryInfo.
absl::Status Unavailable(std::string_view reason,
                         std::string_view message,
                         absl::Duration retry_after);

// ErrorInfo.reason of `status`, or "".
std::string ReasonOf(const absl::Status& status);
// ErrorInfo.metadata of `status`.
std::map<std::string, std::string> ReasonMetadata(const absl::Status& status);
// RetryInfo.retry_delay of `status`, if there is one.
std::optional<absl::Duration> RetryAfter(const absl::Status& status);
// BadRequest.field_violations of `status`.
std::vector<FieldViolation> FieldViolations(const absl::Status& status);

}  // namespace baton::rpc
