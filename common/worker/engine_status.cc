#include "common/worker/engine_status.h"

#include <string_view>
#include <utility>

#include "absl/time/time.h"

#include "common/rpc/status_details.h"

namespace baton::worker {
namespace {

// A full queue or pool empties at the pace of requests; a draining worker never does, but another
// one may answer.
constexpr absl::Duration kRetryFull = absl::Milliseconds(100);
constexpr absl::Duration kRetryElsewhere = absl::Milliseconds(500);

// "QUEUE_FULL" of "QUEUE_FULL: 7 requests wait", or "".
std::string_view LeadingReason(std::string_view message) {
  const size_t size = message.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
  const bool is_reason =
      size != std::string_view::npos && size >= 4 && message.substr(size).starts_with(": ");
  return is_reason ? message.substr(0, size) : std::string_view();
}

}  // namespace

absl::Status DescribeStatus(absl::Status status) {
  if (status.ok()) {
    return status;
  }
  const std::string_view reason = LeadingReason({status.message().data(), status.message().size()});
  if (!reason.empty() && rpc::ReasonOf(status).empty()) {
    status = rpc::WithReason(status, reason);
  }
  // A client that reads too slowly would again.
  if (rpc::RetryAfter(status).has_value() || rpc::ReasonOf(status) == rpc::reason::kSlowReader) {
    return status;
  }
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return rpc::WithRetry(std::move(status), kRetryFull);
    case absl::StatusCode::kUnavailable:
      return rpc::WithRetry(std::move(status), kRetryElsewhere);
    default:
      return status;
  }
}

}  // namespace baton::worker
