// What a prefill and a decode worker have in common: model, engine, metrics, server, health.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/impl/service_type.h"

#include "common/engine/engine.h"
#include "common/metrics/exposer.h"
#include "common/metrics/registry.h"
#include "common/rpc/server.h"
#include "common/trace/span_file.h"
#include "common/worker/compute.h"
#include "common/worker/health_monitor.h"
#include "common/worker/transport_device.h"
#include "common/worker/worker_metrics.h"
#include "common/worker/worker_options.h"
#include "kernels/core/device_link.h"
#include "kernels/core/memory.h"

namespace baton::worker {

class ControlService;

// Brought up in the order Load, StartEngine, StartServer, Open, because each needs what the one
// before made; Shutdown goes the other way. Accessors are thread-safe once Open has returned.
class Worker {
 public:
  // Loads the model.
  static absl::StatusOr<std::unique_ptr<Worker>> Load(WorkerOptions options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // `reservations` is borrowed, may be null, and must outlive the engine. On a device the engine
  // has rehearsed when this returns (rehearse.h).
  absl::Status StartEngine(engine::ReservationObserver* reservations);
  // Listens with Control and `services` (borrowed). Calls may come from now on, but `accepting` is
  // false until Open. `service_names` follow the worker's readiness in grpc.health.v1.
  absl::Status StartServer(std::vector<grpc::Service*> services,
                           std::vector<std::string> service_names);
  // Serves metrics, turns ready and writes the port file.
  absl::Status Open();

  // Refuses new requests from now on; running ones finish. Readiness turns NOT_SERVING.
  void Drain();
  // No request is open any more.
  bool idle() const;
  // Ends every call and stops server and engine, in that order. Later calls do nothing.
  void Shutdown(absl::Duration grace);

  bool accepting() const { return accepting_.load(); }
  bool ready() const { return accepting() && health_ != nullptr && health_->ready(); }
  const WorkerOptions& options() const { return options_; }
  engine::Engine& engine() const { return *engine_; }
  // How KV of peers gets into the device's memory. Lives as long as the worker.
  TransportDevice transport_device() const {
    return memory().is_host()
               ? TransportDevice{}
               : TransportDevice{.memory = &memory().landing(), .links = links_.get()};
  }
  const kv::v1::KvLayout& layout() const { return compute_->layout; }
  WorkerMetrics& metrics() { return *metrics_; }
  // Null: no spans are written.
  trace::SpanFile* spans() const { return spans_.get(); }
  // Random per start; a router that sees another one knows that the worker restarted.
  uint64_t incarnation() const { return incarnation_; }
  // host:port under which peers reach this worker.
  const std::string& address() const { return address_; }
  int port() const { return server_->port(); }
  int metrics_port() const { return exposer_ == nullptr ? 0 : exposer_->port(); }

  // Counts a request's call as open while it lives; may outlive the worker.
  class OpenCall {
   public:
    explicit OpenCall(Worker& worker) : open_calls_(worker.open_calls_) { ++*open_calls_; }
    ~OpenCall() { --*open_calls_; }
    OpenCall(const OpenCall&) = delete;
    OpenCall& operator=(const OpenCall&) = delete;

   private:
    const std::shared_ptr<std::atomic<int64_t>> open_calls_;
  };

 private:
  explicit Worker(WorkerOptions options);
  // Where the ops work.
  kernels::MemorySpace& memory() const { return *compute_->backend->exec().memory; }
  bool Offers(std::string_view transport) const;
  absl::Status SetPools(engine::EngineOptions& options) const;

  const WorkerOptions options_;
  const uint64_t incarnation_;
  std::unique_ptr<Compute> compute_;
  std::unique_ptr<kernels::DeviceLinks> links_;  // null when nccl is not offered
  std::shared_ptr<metrics::Registry> registry_;
  std::unique_ptr<WorkerMetrics> metrics_;
  std::unique_ptr<trace::SpanFile> spans_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<ControlService> control_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<HealthMonitor> health_;
  std::unique_ptr<metrics::Exposer> exposer_;
  std::vector<std::string> service_names_;
  std::string address_;
  std::atomic<bool> accepting_{false};
  const std::shared_ptr<std::atomic<int64_t>> open_calls_ =
      std::make_shared<std::atomic<int64_t>>(0);
};

// OK while the worker accepts requests, else kUnavailable with reason DRAINING.
absl::Status CheckAccepting(const Worker& worker);

}  // namespace baton::worker
