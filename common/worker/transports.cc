#include "common/worker/transports.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/security/credentials.h"
#include "spdlog/spdlog.h"

#include "common/base/status_macros.h"
#include "common/config/host_port.h"
#include "common/metrics/gauge_writer.h"
#include "common/metrics/metric_families.h"
#include "common/metrics/registry.h"
#include "common/transport/ipc/ipc_transport.h"
#include "common/transport/nccl/nccl_transport.h"
#include "common/transport/ucx/ucx_transport.h"
#include "common/worker/transport_device.h"
#include "common/worker/worker_metrics.h"
#include "common/worker/worker_options.h"

namespace baton::worker {
namespace {

// Where nothing else is said, UCX listens where gRPC does, on a port of its own.
absl::StatusOr<transport::UcxTransportOptions> UcxOptions(const WorkerOptions& options,
                                                          bool receives) {
  transport::UcxTransportOptions ucx = options.ucx;
  if (!receives) {
    ucx.listen.clear();
    return ucx;
  }
  if (ucx.listen.empty()) {
    BATON_ASSIGN_OR_RETURN(config::HostPort listen,
                           config::ParseHostPort(options.listen, /*allow_port_zero=*/true));
    listen.port = 0;
    ucx.listen = listen.ToString();
  }
  if (ucx.advertise_host.empty() && !options.advertise.empty()) {
    BATON_ASSIGN_OR_RETURN(const config::HostPort advertise,
                           config::ParseHostPort(options.advertise, /*allow_port_zero=*/true));
    ucx.advertise_host = advertise.host;
  }
  return ucx;
}

absl::StatusOr<std::unique_ptr<transport::NcclTransport>> MakeNccl(
    const WorkerOptions& options,
    std::shared_ptr<grpc::ChannelCredentials> credentials,
    bool receives,
    const TransportDevice& device) {
  if (device.links == nullptr) {
    return absl::FailedPreconditionError(
        "transport nccl moves KV between GPUs: start this worker with --device=cuda, or take nccl "
        "out of --transports");
  }
  spdlog::info("transport nccl: {}", device.links->Description());
  return transport::NcclTransport::Make({.links = device.links,
                                         .memory = receives ? device.memory : nullptr,
                                         .credentials = std::move(credentials),
                                         .server_name = options.tls.server_name,
                                         .sizes = options.nccl});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transports>> Transports::Make(
    const WorkerOptions& options,
    std::shared_ptr<grpc::ChannelCredentials> credentials,
    bool receives,
    const TransportDevice& device) {
  std::unique_ptr<Transports> made(new Transports());
  made->grpc_ = std::make_unique<transport::GrpcTransport>(transport::GrpcTransportOptions{
      .credentials = credentials, .server_name = options.tls.server_name, .address = ""});
  for (const std::string& name : options.transports) {
    if (name == "grpc") {
      made->list_.push_back(made->grpc_.get());
    } else if (name == "ipc" && made->ipc_ == nullptr) {
      BATON_ASSIGN_OR_RETURN(
          made->ipc_,
          transport::IpcTransport::Make({.listens = receives, .device = device.memory}));
      made->list_.push_back(made->ipc_.get());
    } else if (name == "nccl" && made->nccl_ == nullptr) {
      BATON_ASSIGN_OR_RETURN(made->nccl_,
                             MakeNccl(options, std::move(credentials), receives, device));
      made->list_.push_back(made->nccl_.get());
    } else if (name == "ucx" && made->ucx_ == nullptr) {
      BATON_ASSIGN_OR_RETURN(const transport::UcxTransportOptions ucx,
                             UcxOptions(options, receives));
      BATON_ASSIGN_OR_RETURN(made->ucx_, transport::UcxTransport::Make(ucx));
      made->list_.push_back(made->ucx_.get());
    } else {
      return absl::InvalidArgumentError(absl::StrCat("there is no transport \"", name, "\""));
    }
  }
  return made;
}

void Transports::set_address(const std::string& address) {
  grpc_->set_address(address);
  if (nccl_ != nullptr) {
    nccl_->set_address(address);
  }
}

void Transports::Watch(WorkerMetrics& metrics) const {
  if (ucx_ == nullptr) {
    return;
  }
  metrics.registry().AddGauges([ucx = ucx_.get()](metrics::GaugeWriter& gauges) {
    const transport::UcxStats stats = ucx->stats();
    gauges.Set(metrics::kKvLandingBytes, static_cast<double>(stats.arena_bytes));
    gauges.Set(metrics::kKvLandingSlots, {"granted"}, static_cast<double>(stats.granted_slots));
    gauges.Set(
        metrics::kKvLandingSlots, {"quarantined"}, static_cast<double>(stats.quarantined_slots));
    for (const std::string& carrier : stats.carriers) {
      gauges.Set(metrics::kKvTransportInfo, {carrier}, 1);
    }
  });
}

}  // namespace baton::worker
