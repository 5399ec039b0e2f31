// The router that a command talks to.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

#include "common/rpc/tls.h"
#include "proto/baton/inference/v1/inference.grpc.pb.h"

namespace baton::client {

struct ConnectionOptions {
  std::string router;  // host:port
  rpc::TlsOptions tls;
  // Of every call; infinite: none.
  absl::Duration timeout = absl::InfiniteDuration();
};

// Thread-safe.
class Connection {
 public:
  // Does not wait for the router. kInvalidArgument: a bad address or TLS flag.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const ConnectionOptions& options);

  inference::v1::Inference::Stub& stub() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // Sets the timeout of a call.
  void Prepare(grpc::ClientContext* context) const;

 private:
  Connection(std::shared_ptr<grpc::Channel> channel, absl::Duration timeout);

  const std::shared_ptr<grpc::Channel> channel_;
  const absl::Duration timeout_;
  const std::unique_ptr<inference::v1::Inference::Stub> stub_;
};

}  // namespace baton::client
