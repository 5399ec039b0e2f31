// The engine's refusals with the details that clients act on.
#pragma once

#include "absl/status/status.h"

namespace baton::worker {

// Engine, landing and sender know no protobuf: they start a message with its reason, "QUEUE_FULL:
// ...". This adds the reason as ErrorInfo (one that is there already stays), and RetryInfo where
// the same request may succeed soon (kResourceExhausted and kUnavailable, serving.md 7.3).
absl::Status DescribeStatus(absl::Status status);

}  // namespace baton::worker
