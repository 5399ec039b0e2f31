// Channels to other processes of the deployment, and to the router.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/channel.h"

#include "common/rpc/limits.h"
#include "common/rpc/tls.h"

namespace baton::rpc {

// A channel to `target` (host:port, or any gRPC target) with TLS, message limits and keepalive.
// Connects on first use and reconnects after at most 1 s (internal) or 5 s (public). Channels of
// one process to one target don't share a connection. kInvalidArgument or kNotFound for bad TLS
// files.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& target,
                                                           const TlsOptions& tls,
                                                           Exposure exposure);

// As above with credentials made beforehand, so that it reads no file and can't fail; for reactors.
// `server_name` as in TlsOptions.
std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& target,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials,
    const std::string& server_name,
    Exposure exposure);

}  // namespace baton::rpc
