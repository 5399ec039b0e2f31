// Sockets of packets in the abstract namespace.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "common/transport/ipc/channel.h"

namespace baton::transport::ipc {

// Listens at `socket`. kUnavailable with the system's reason.
absl::StatusOr<Descriptor> Listen(const std::string& socket);
// The next connection that waits. kNotFound: there is none now, or it has gone; kResourceExhausted:
// this process or the system is out of descriptors or memory, and the connection goes on waiting.
absl::StatusOr<Descriptor> Accept(const Descriptor& listener);
// Connects to who listens at `socket`. kUnavailable when nobody does in this network namespace, or
// too many connections wait there.
absl::StatusOr<Descriptor> Dial(const std::string& socket);

}  // namespace baton::transport::ipc
