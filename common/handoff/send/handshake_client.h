// How the sending side asks a decode worker whether they agree on layout and transports.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "proto/baton/worker/v1/kv_transfer.pb.h"

namespace baton::handoff {

// Implemented by the service over KvTransfer.Handshake. Thread-safe.
class HandshakeClient {
 public:
  virtual ~HandshakeClient() = default;
  // Blocks at most a few seconds (its own deadline); called on a thread of the peer cache.
  virtual absl::StatusOr<worker::v1::HandshakeResponse> Handshake(
      const std::string& control_address, const worker::v1::HandshakeRequest& request) = 0;
};

}  // namespace baton::handoff
