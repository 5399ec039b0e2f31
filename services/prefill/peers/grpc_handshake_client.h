// KvTransfer.Handshake with a decode worker.
#pragma once

#include <string>

#include "common/handoff/send/handshake_client.h"
#include "services/prefill/peers/channel_cache.h"

namespace baton::prefill {

// Thread-safe; blocks at most 5 s. `channels` is borrowed.
class GrpcHandshakeClient : public handoff::HandshakeClient {
 public:
  explicit GrpcHandshakeClient(ChannelCache* channels) : channels_(*channels) {}

  absl::StatusOr<worker::v1::HandshakeResponse> Handshake(
      const std::string& control_address, const worker::v1::HandshakeRequest& request) override;

 private:
  ChannelCache& channels_;
};

}  // namespace baton::prefill
