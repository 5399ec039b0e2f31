// Errors of the hand-off that carry a machine-readable reason (google.rpc.ErrorInfo).
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace baton::kv {

// Key of the absl::Status payload that holds a serialized google.rpc.ErrorInfo; it is the type URL
// that the message has inside google.rpc.Status.
inline constexpr std::string_view kErrorInfoTypeUrl = "type.googleapis.com/google.rpc.ErrorInfo";

inline constexpr std::string_view kLayoutMismatch = "LAYOUT_MISMATCH";
inline constexpr std::string_view kStaleEpoch = "STALE_EPOCH";

// kFailedPrecondition "REASON: message" with the reason as ErrorInfo in domain "baton".
absl::Status FailedPreconditionWithReason(std::string_view reason, std::string_view message);

}  // namespace baton::kv
