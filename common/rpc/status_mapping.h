// The one place where absl::Status and grpc::Status meet.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/status.h"

namespace baton::rpc {

// Same code and message; payloads of type google.rpc.* travel in grpc-status-details-bin. Messages
// are cut to 1 KiB and details beyond 4 KiB are dropped, because HTTP/2 trailers are limited.
grpc::Status ToGrpcStatus(const absl::Status& status);

// The reverse. Details are outside bytes: what does not parse is dropped, a code outside the
// canonical ones becomes kUnknown.
absl::Status FromGrpcStatus(const grpc::Status& status);

// ToGrpcStatus for the end of a server call: also sets the trailer grpc-retry-pushback-ms when
// `status` has a RetryInfo. `context` may be null (a call without one, as in tests).
grpc::Status FinishStatus(grpc::ServerContextBase* context, const absl::Status& status);

// Upper-case name of a canonical code, "OK" to "UNAUTHENTICATED": the label value of metrics.
const char* CodeName(absl::StatusCode code);

}  // namespace baton::rpc
