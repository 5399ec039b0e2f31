// A failed call as a person wants to read it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace baton::client {

// "UNAVAILABLE: no worker is ready (reason NO_ENDPOINTS, retry after 1s)". Details of google.rpc
// are written out; OK gives "OK".
std::string ErrorText(const absl::Status& status);

// The status of a call as an absl::Status whose message is ErrorText; payloads stay.
absl::Status ReadableStatus(const grpc::Status& status);

}  // namespace baton::client
