// What ends a request: a worker that failed, a deadline that passed.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace baton::router {

// When a client may come back after a worker was lost: about the time to notice and reconnect.
inline constexpr absl::Duration kRetryDelay = absl::Seconds(1);

enum class WorkerFailure {
  kBusy,      // full at present; another worker, or the same one later
  kLost,      // gone, or of no use to this request; another worker
  kDeadline,  // the request's deadline passed there
  kFinal,     // the request's own fault or a bug: the client gets it as it is
};

// Status of an ended Decode.Generate that is not complete; OK means that its stream ended without
// the terminal message. Only a call without a reservation yet can be refused.
WorkerFailure ClassifyDecodeFailure(const absl::Status& status, bool reserving);

// Status of a Prefill.Prefill that ended before its commit; OK as above.
WorkerFailure ClassifyPrefillFailure(const absl::Status& status);

// Whether a prefill call ended because the way to its decode worker is lost: prefill itself is
// well.
bool LostAtDecode(const absl::Status& status);

// DEADLINE_EXCEEDED that names the phase: "queue", "prefill", "transfer" or "decode".
absl::Status DeadlineExceeded(std::string_view phase);

}  // namespace baton::router
