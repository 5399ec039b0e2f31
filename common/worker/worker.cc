#include "common/worker/worker.h"

#include <filesystem>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "spdlog/spdlog.h"

#include "common/base/status_macros.h"
#include "common/config/host_port.h"
#include "common/engine/engine.h"
#include "common/metrics/exposer.h"
#include "common/metrics/gauge_writer.h"
#include "common/metrics/metric_families.h"
#include "common/metrics/registry.h"
#include "common/rpc/limits.h"
#include "common/rpc/port_file.h"
#include "common/rpc/server.h"
#include "common/rpc/status_details.h"
#include "common/trace/span_file.h"
#include "common/trace/trace_flags.h"
#include "common/worker/compute.h"
#include "common/worker/control_service.h"
#include "common/worker/health_monitor.h"
#include "common/worker/pool_sizes.h"
#include "common/worker/rehearse.h"
#include "common/worker/worker_metrics.h"
#include "common/worker/worker_options.h"

namespace baton::worker {
namespace {

uint64_t RandomIncarnation() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device() | 1;
}

WorkerOptions WithDefaults(WorkerOptions options) {
  if (options.model_name.empty()) {
    const std::filesystem::path path = std::filesystem::path(options.model_dir).lexically_normal();
    options.model_name = path.has_filename() ? path.filename() : path.parent_path().filename();
  }
  options.engine.page_dtype = options.compute;
  return options;
}

const char* RoleName(engine::Role role) {
  switch (role) {
    case engine::Role::kPrefill:
      return "prefill";
    case engine::Role::kDecode:
      return "decode";
    case engine::Role::kBoth:
      return "both";
  }
  return "unknown";
}

absl::StatusOr<std::unique_ptr<trace::SpanFile>> OpenSpans(
    const WorkerOptions& options,
    uint64_t incarnation,
    std::shared_ptr<metrics::Registry> registry) {
  const bool prefill = options.engine.role == engine::Role::kPrefill;
  return trace::OpenSpanFile(options.trace,
                             prefill ? "baton-prefill" : "baton-decode",
                             options.version,
                             absl::StrFormat("%016x", incarnation),
                             std::move(registry));
}

// The address that peers dial: `advertise`, its port 0 replaced by the one in use.
absl::StatusOr<std::string> AdvertisedAddress(const WorkerOptions& options,
                                              const rpc::Server& server) {
  if (options.advertise.empty()) {
    return server.address();
  }
  BATON_ASSIGN_OR_RETURN(config::HostPort address,
                         config::ParseHostPort(options.advertise, /*allow_port_zero=*/true));
  if (address.port == 0) {
    address.port = static_cast<uint16_t>(server.port());
  }
  return address.ToString();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Load(WorkerOptions options) {
  std::unique_ptr<Worker> worker(new Worker(WithDefaults(std::move(options))));
  BATON_ASSIGN_OR_RETURN(worker->spans_,
                         OpenSpans(worker->options_, worker->incarnation_, worker->registry_));
  BATON_ASSIGN_OR_RETURN(worker->compute_, LoadCompute(worker->options_));
  if (worker->Offers("nccl") && !worker->memory().is_host()) {
    BATON_ASSIGN_OR_RETURN(worker->links_, worker->compute_->backend->MakeLinks());
  }
  return worker;
}

Worker::Worker(WorkerOptions options)
    : options_(std::move(options)),
      incarnation_(RandomIncarnation()),
      registry_(std::make_shared<metrics::Registry>(
          metrics::RegistryOptions{.model_name = options_.model_name,
                                   .role = RoleName(options_.engine.role),
                                   .vllm_aliases = options_.vllm_metrics})),
      metrics_(std::make_unique<WorkerMetrics>(
          registry_, options_.engine.role == engine::Role::kPrefill ? "prefill" : "decode")) {}

Worker::~Worker() { Shutdown(absl::ZeroDuration()); }

bool Worker::Offers(std::string_view transport) const {
  return absl::c_linear_search(options_.transports, transport);
}

// The model is loaded: what it takes of a device's memory is taken.
absl::Status Worker::SetPools(engine::EngineOptions& options) const {
  const bool peers_read =
      options.role == engine::Role::kPrefill && (Offers("ipc") || Offers("nccl"));
  options.kv_memory = peers_read ? memory().shared() : nullptr;
  if (memory().is_host()) {
    SetHostPools(options_.pools, options);
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(const int64_t left,
                         compute_->backend->MemoryLeft(options_.device_memory_share));
  PoolSizes told = options_.pools;
  if (!compute_->model->config().swiftkv()) {
    told.hidden = 0;
  }
  BATON_RETURN_IF_ERROR(SetDevicePools(told, left, options));
  spdlog::info(
      "device {} has pools of {}, {}, {} and {} MiB for the KV formats dense, fp8, diffkv and "
      "shadowkv, {} MiB of the host's memory for values of shadowkv, and {} MiB for hidden states",
      options_.device,
      options.kv_pool_bytes >> 20,
      options.codec_pools.fp8_bytes >> 20,
      options.codec_pools.diffkv_bytes >> 20,
      options.codec_pools.shadowkv_bytes >> 20,
      options.codec_pools.shadowkv_host_bytes.value_or(0) >> 20,
      options.codec_pools.hidden_bytes >> 20);
  return absl::OkStatus();
}

absl::Status Worker::StartEngine(engine::ReservationObserver* reservations) {
  engine::EngineOptions engine_options = options_.engine;
  engine_options.calibration = compute_->calibration;
  BATON_RETURN_IF_ERROR(SetPools(engine_options));
  BATON_ASSIGN_OR_RETURN(engine_,
                         engine::Engine::Create(std::move(compute_->model),
                                                compute_->backend->exec(),
                                                compute_->backend->ops(),
                                                engine_options,
                                                reservations,
                                                metrics_.get()));
  if (!memory().is_host()) {
    Rehearse(*engine_);
  }
  metrics_->WatchEngine(engine_.get(), options_.version);
  return absl::OkStatus();
}

absl::Status Worker::StartServer(std::vector<grpc::Service*> services,
                                 std::vector<std::string> service_names) {
  service_names_ = std::move(service_names);
  control_ = std::make_unique<ControlService>(this);
  services.push_back(control_.get());
  std::vector<std::string> health_names = service_names_;
  health_names.emplace_back("readiness");
  BATON_ASSIGN_OR_RETURN(server_,
                         rpc::Server::Start({.listen = options_.listen,
                                             .tls = options_.tls,
                                             .exposure = rpc::Exposure::kInternal,
                                             .services = std::move(services),
                                             .health_names = std::move(health_names)}));
  BATON_ASSIGN_OR_RETURN(address_, AdvertisedAddress(options_, *server_));
  return absl::OkStatus();
}

absl::Status Worker::Open() {
  if (!options_.metrics_listen.empty()) {
    BATON_ASSIGN_OR_RETURN(exposer_, metrics::Exposer::Start(options_.metrics_listen, registry_));
  }
  health_ = std::make_unique<HealthMonitor>(
      server_.get(), engine_.get(), options_.stall_timeout, service_names_);
  registry_->AddGauges(
      [this](metrics::GaugeWriter& gauges) { gauges.Set(metrics::kReady, ready() ? 1 : 0); });
  server_->SetServing("baton.worker.v1.Control", true);
  accepting_.store(true);
  spdlog::info("serving role={} address={} metrics_port={} incarnation={:x}",
               RoleName(options_.engine.role),
               address_,
               metrics_port(),
               incarnation_);
  return rpc::WritePortFile(options_.port_file, port(), metrics_port());
}

void Worker::Drain() {
  spdlog::info("draining open_calls={}", open_calls_->load());
  engine_->Drain();
}

bool Worker::idle() const { return open_calls_->load() == 0; }

void Worker::Shutdown(absl::Duration grace) {
  accepting_.store(false);
  // Whoever looks at health and engine goes before them: scrapes, then calls.
  registry_->ClearGauges();
  exposer_.reset();
  if (server_ != nullptr) {
    server_->Shutdown(grace);
  }
  health_.reset();
  // It stays until the worker goes: threads of transports may still come to it.
  if (engine_ != nullptr) {
    engine_->Shutdown();
  }
}

absl::Status CheckAccepting(const Worker& worker) {
  if (worker.accepting()) {
    return absl::OkStatus();
  }
  return rpc::Unavailable(
      rpc::reason::kDraining, "this worker is starting or stopping", absl::Milliseconds(500));
}

}  // namespace baton::worker
