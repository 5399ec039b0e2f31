#include "services/client/connection.h"

#include <utility>

#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/config/host_port.h"
#include "common/rpc/channel.h"
#include "common/rpc/request_metadata.h"

namespace baton::client {

Connection::Connection(std::shared_ptr<grpc::Channel> channel, absl::Duration timeout)
    : channel_(std::move(channel)),
      timeout_(timeout),
      stub_(inference::v1::Inference::NewStub(channel_)) {}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const ConnectionOptions& options) {
  BATON_RETURN_IF_ERROR(config::ParseHostPort(options.router).status());
  BATON_ASSIGN_OR_RETURN(auto channel,
                         rpc::MakeChannel(options.router, options.tls, rpc::Exposure::kPublic));
  return std::unique_ptr<Connection>(new Connection(std::move(channel), options.timeout));
}

void Connection::Prepare(grpc::ClientContext* context) const {
  rpc::SetDeadline(absl::Now() + timeout_, context);
}

}  // namespace baton::client
