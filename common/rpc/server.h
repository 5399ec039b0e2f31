// One gRPC listener with everything that each of ours has: TLS, health, reflection, keepalive,
// message limits and a memory quota.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server.h"

#include "common/rpc/limits.h"
#include "common/rpc/tls.h"

namespace baton::rpc {

struct ServerOptions {
  // host:port; port 0 takes a free one. Loopback unless told otherwise.
  std::string listen = "127.0.0.1:0";
  TlsOptions tls = {};
  Exposure exposure = Exposure::kInternal;
  // Served here; borrowed, must outlive the server.
  std::vector<grpc::Service*> services = {};
  // Names that grpc.health.v1 knows besides "" and "liveness"; all start as NOT_SERVING.
  std::vector<std::string> health_names = {};
  // Memory that this server's calls may hold before gRPC pushes back on reads.
  int64_t memory_quota_bytes = int64_t{1} << 30;
};

// Thread-safe.
class Server {
 public:
  // Listens, or says why it can't: kUnavailable (address in use or not ours), or the TLS error.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  // Shutdown without grace.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The port in use.
  int port() const { return port_; }
  // The host of the listen address with the port in use.
  const std::string& address() const { return address_; }

  // Sets what grpc.health.v1 answers for `name`.
  void SetServing(const std::string& name, bool serving);

  // Refuses new calls, gives running ones `grace`, cancels the rest and waits until every reactor
  // is done. Later calls do nothing.
  void Shutdown(absl::Duration grace);

 private:
  Server(std::unique_ptr<grpc::Server> server, std::string address, int port);

  std::unique_ptr<grpc::Server> server_;
  const std::string address_;
  const int port_;
};

}  // namespace baton::rpc
