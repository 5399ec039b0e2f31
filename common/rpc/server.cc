#include "common/rpc/server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"

#include "common/base/status_macros.h"
#include "common/rpc/callback_queue.h"

namespace baton::rpc {
namespace {

// Reflection streams that are open at once; each takes a thread.
constexpr int kMaxSyncThreads = 16;

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

// Health and reflection are process-wide plugins of gRPC: registered once, before the first server.
void EnablePlugins() {
  static const bool enabled = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)enabled;
}

void SetLimits(const ServerOptions& options, grpc::ServerBuilder& builder) {
  const bool internal = options.exposure == Exposure::kInternal;
  builder.SetMaxReceiveMessageSize(MaxMessageBytes(options.exposure));
  builder.SetMaxSendMessageSize(MaxMessageBytes(options.exposure));
  builder.AddChannelArgument(
      GRPC_ARG_KEEPALIVE_TIME_MS,
      Milliseconds(internal ? kInternalKeepaliveTime : kPublicKeepaliveTime));
  builder.AddChannelArgument(
      GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
      Milliseconds(internal ? kInternalKeepaliveTimeout : kPublicKeepaliveTimeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Milliseconds(kMinPingInterval));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Two processes on one port would share its connections at random; the second must fail.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  grpc::ResourceQuota quota("baton");
  quota.Resize(static_cast<size_t>(options.memory_quota_bytes));
  quota.SetMaxThreads(kMaxSyncThreads);
  builder.SetResourceQuota(quota);
  // Only reflection is synchronous; everything else runs on callbacks.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 1);
}

std::string WithPort(const std::string& listen, int port) {
  return absl::StrCat(listen.substr(0, listen.rfind(':') + 1), port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  if (options.listen.rfind(':') == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen address `", options.listen, "` is not host:port"));
  }
  BATON_ASSIGN_OR_RETURN(auto credentials, MakeServerCredentials(options.tls));
  EnablePlugins();
  PinCallbackQueue();
  grpc::ServerBuilder builder;
  SetLimits(options, builder);
  int port = 0;
  builder.AddListeningPort(options.listen, credentials, &port);
  for (grpc::Service* service : options.services) {
    builder.RegisterService(service);
  }
  std::unique_ptr<grpc::Server> grpc_server = builder.BuildAndStart();
  if (grpc_server == nullptr || port <= 0) {
    return absl::UnavailableError(absl::StrCat(
        "can't listen on ",
        options.listen,
        ": the address is in use or not this machine's, or the TLS files don't fit together"));
  }
  std::unique_ptr<Server> server(
      new Server(std::move(grpc_server), WithPort(options.listen, port), port));
  server->SetServing("", false);
  server->SetServing("liveness", true);
  for (const std::string& name : options.health_names) {
    server->SetServing(name, false);
  }
  return server;
}

Server::Server(std::unique_ptr<grpc::Server> server, std::string address, int port)
    : server_(std::move(server)), address_(std::move(address)), port_(port) {}

Server::~Server() { Shutdown(absl::ZeroDuration()); }

void Server::SetServing(const std::string& name, bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(name, serving);
}

void Server::Shutdown(absl::Duration grace) {
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
}

}  // namespace baton::rpc
