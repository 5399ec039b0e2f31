// Asks another process whether it serves (grpc.health.v1.Health.Check).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"

namespace baton::rpc {

// True when `service` is SERVING there, false when it is not. kNotFound: the name is unknown;
// kUnavailable or kDeadlineExceeded: no answer by `deadline`. Blocks; not for reactors.
absl::StatusOr<bool> CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                                 const std::string& service,
                                 absl::Time deadline);

}  // namespace baton::rpc
