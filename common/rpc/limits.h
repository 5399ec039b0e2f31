// Message sizes and keepalive of every gRPC connection (serving.md 7.4, performance.md 6).
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace baton::rpc {

// Who is on the other side: clients, or workers and routers of this deployment.
enum class Exposure { kPublic, kInternal };

inline constexpr int kPublicMessageBytes = 4 << 20;
// A prompt of 16 M tokens, or a piece of KV.
inline constexpr int kInternalMessageBytes = 64 << 20;

constexpr int MaxMessageBytes(Exposure exposure) {
  return exposure == Exposure::kPublic ? kPublicMessageBytes : kInternalMessageBytes;
}

// Internal connections are probed even without calls, so that a peer that vanished without closing
// (power loss, cut network) is noticed within the default lease of 10 s.
inline constexpr absl::Duration kInternalKeepaliveTime = absl::Seconds(5);
inline constexpr absl::Duration kInternalKeepaliveTimeout = absl::Seconds(3);
inline constexpr absl::Duration kPublicKeepaliveTime = absl::Seconds(30);
inline constexpr absl::Duration kPublicKeepaliveTimeout = absl::Seconds(10);
// Time that one attempt to connect gets, TLS handshake included.
inline constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
// Pings faster than this are abuse.
inline constexpr absl::Duration kMinPingInterval = absl::Seconds(1);

}  // namespace baton::rpc
