#include "services/router/session/worker_failure.h"

#include <string>
#include <string_view>

#include "common/rpc/status_details.h"

namespace baton::router {
namespace {

// A policy that was asked for explicitly is never replaced by another one.
bool PolicyNotServed(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) &&
         rpc::ReasonOf(status) == rpc::reason::kPolicyNotServed;
}

}  // namespace

WorkerFailure ClassifyDecodeFailure(const absl::Status& status, bool reserving) {
  if (PolicyNotServed(status)) {
    return WorkerFailure::kFinal;
  }
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:  // later on: this request's own limits
      return reserving ? WorkerFailure::kBusy : WorkerFailure::kFinal;
    case absl::StatusCode::kAlreadyExists:  // the call of an attempt before is still being ended
      return reserving ? WorkerFailure::kBusy : WorkerFailure::kLost;
    case absl::StatusCode::kOk:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kFailedPrecondition:  // the lease expired, or another role or layout
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAborted:
      return WorkerFailure::kLost;
    case absl::StatusCode::kDeadlineExceeded:
      return WorkerFailure::kDeadline;
    default:
      return WorkerFailure::kFinal;
  }
}

WorkerFailure ClassifyPrefillFailure(const absl::Status& status) {
  if (PolicyNotServed(status)) {
    return WorkerFailure::kFinal;
  }
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAlreadyExists:
      return WorkerFailure::kBusy;
    case absl::StatusCode::kOk:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAborted:
      return WorkerFailure::kLost;
    case absl::StatusCode::kDeadlineExceeded:
      return WorkerFailure::kDeadline;
    default:
      return WorkerFailure::kFinal;
  }
}

bool LostAtDecode(const absl::Status& status) {
  return absl::IsUnavailable(status) && rpc::ReasonOf(status) == rpc::reason::kDecodeLost;
}

absl::Status DeadlineExceeded(std::string_view phase) {
  const std::string name(phase);
  return rpc::WithReason(absl::DeadlineExceededError("the deadline passed in phase " + name),
                         rpc::reason::kDeadline,
                         {{"phase", name}});
}

}  // namespace baton::router
