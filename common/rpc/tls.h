// Transport security of listeners and channels.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace baton::rpc {

// Paths of PEM files; all empty: no TLS.
struct TlsOptions {
  std::string cert = {};  // own certificate chain
  std::string key = {};   // its private key
  std::string ca = {};    // roots that peers' certificates must lead to
  // Name that a dialled peer's certificate must carry; empty: the host dialled.
  std::string server_name = {};

  bool enabled() const { return !cert.empty() || !key.empty() || !ca.empty(); }
};

// Credentials of a listener. Needs cert and key; with `ca`, clients must present a certificate that
// leads to it (mutual TLS). kInvalidArgument names a missing option, kNotFound an unreadable file.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsOptions& options);

// Credentials of a channel. Needs `ca`; presents cert and key when given. Errors as above.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsOptions& options);

}  // namespace baton::rpc
