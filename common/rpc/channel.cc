#include "common/rpc/channel.h"

#include <memory>
#include <string>

#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

#include "common/base/status_macros.h"
#include "common/rpc/callback_queue.h"
#include "common/rpc/limits.h"
#include "common/rpc/tls.h"

namespace baton::rpc {
namespace {

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

bool OnThisMachine(const std::string& target) {
  return target.starts_with("127.") || target.starts_with("localhost:") ||
         target.starts_with("[::1]:");
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& target,
                                                           const TlsOptions& tls,
                                                           Exposure exposure) {
  BATON_ASSIGN_OR_RETURN(const auto credentials, MakeChannelCredentials(tls));
  return MakeChannel(target, credentials, tls.server_name, exposure);
}

std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& target,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials,
    const std::string& server_name,
    Exposure exposure) {
  PinCallbackQueue();
  const bool internal = exposure == Exposure::kInternal;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(MaxMessageBytes(exposure));
  arguments.SetMaxSendMessageSize(MaxMessageBytes(exposure));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS,
                   Milliseconds(internal ? kInternalKeepaliveTime : kPublicKeepaliveTime));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   Milliseconds(internal ? kInternalKeepaliveTimeout : kPublicKeepaliveTimeout));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, internal ? 1 : 0);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Despite its name the time that one attempt to connect gets; a short one gives up on a busy
  // peer.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Milliseconds(kConnectTimeout));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, internal ? 1000 : 5000);
  // A worker that comes back under its name may have another address.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, internal ? 1000 : 30000);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // gRPC takes http_proxy from the environment, and of no_proxy it knows names alone, no networks:
  // workers are dialled by address.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, internal || OnThisMachine(target) ? 0 : 1);
  if (!server_name.empty()) {
    arguments.SetSslTargetNameOverride(server_name);
  }
  return grpc::CreateCustomChannel(target, credentials, arguments);
}

}  // namespace baton::rpc
