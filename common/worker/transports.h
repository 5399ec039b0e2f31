// The transports that a worker offers its peers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/security/credentials.h"

#include "common/transport/grpc/grpc_transport.h"
#include "common/transport/ipc/ipc_transport.h"
#include "common/transport/nccl/nccl_transport.h"
#include "common/transport/transport.h"
#include "common/transport/ucx/ucx_transport.h"
#include "common/worker/transport_device.h"
#include "common/worker/worker_options.h"

namespace baton::worker {

class WorkerMetrics;

// Made before what moves KV with them, and destroyed after it. Thread-safe.
class Transports {
 public:
  // Those of options.transports. `credentials` are of gRPC channels to peers. `receives`: peers
  // connect to this worker (decode), whose windows are of `device`, or of the host.
  // kFailedPrecondition or kUnimplemented when one can't be had.
  static absl::StatusOr<std::unique_ptr<Transports>> Make(
      const WorkerOptions& options,
      std::shared_ptr<grpc::ChannelCredentials> credentials,
      bool receives,
      const TransportDevice& device);

  // Preferred first.
  std::vector<transport::Transport*> list() const { return list_; }
  // Serves PushKv; there even when it is not offered, and then no window is known to a sender.
  transport::GrpcTransport& grpc() { return *grpc_; }
  // Null when it is not offered.
  transport::NcclTransport* nccl() const { return nccl_.get(); }
  // For a server whose port is known only after it was started: where peers reach this worker.
  void set_address(const std::string& address);
  // Publishes carriers and landing slots until Registry::ClearGauges.
  void Watch(WorkerMetrics& metrics) const;

 private:
  Transports() = default;

  std::unique_ptr<transport::GrpcTransport> grpc_;
  std::unique_ptr<transport::IpcTransport> ipc_;    // null when it is not offered
  std::unique_ptr<transport::UcxTransport> ucx_;    // the same
  std::unique_ptr<transport::NcclTransport> nccl_;  // the same
  std::vector<transport::Transport*> list_;
};

}  // namespace baton::worker
