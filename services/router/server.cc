#include "services/router/server.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "spdlog/spdlog.h"

#include "common/base/check.h"
#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/metrics/exposer.h"
#include "common/metrics/gauge_writer.h"
#include "common/metrics/metric_families.h"
#include "common/metrics/process_start.h"
#include "common/metrics/registry.h"
#include "common/rpc/limits.h"
#include "common/rpc/server.h"
#include "common/scheduling/central_queue.h"
#include "common/trace/trace_context.h"
#include "common/trace/trace_flags.h"
#include "services/router/admission/admission.h"
#include "services/router/inference_service.h"
#include "services/router/model/served_model.h"
#include "services/router/router_metrics.h"
#include "services/router/router_options.h"
#include "services/router/status/status_pages.h"
#include "services/router/timer_queue.h"
#include "services/router/work_pool.h"
#include "services/router/workers/discovery.h"
#include "services/router/workers/introduce.h"
#include "services/router/workers/worker.h"
#include "services/router/workers/worker_calls.h"
#include "services/router/workers/worker_set.h"

namespace baton::router {
namespace {

constexpr char kServiceName[] = "baton.inference.v1.Inference";
constexpr char kReadiness[] = "readiness";
// Prompts that may wait for the tokenizer; each holds at most one public message.
constexpr size_t kMaxWaitingPrompts = 256;
constexpr absl::Duration kReportAgeInterval = absl::Seconds(1);
// Worker calls end soon after they were cancelled; a worker that hangs can delay it.
constexpr absl::Duration kSessionEndTimeout = absl::Seconds(10);
// For what ended requests have told workers last, such as that retained KV is no longer wanted.
constexpr absl::Duration kWorkerCallGrace = absl::Seconds(1);

void WriteWorkerCounts(const WorkerSet& workers, metrics::GaugeWriter& writer) {
  for (const auto& [kind, role] :
       {std::pair(WorkerKind::kPrefill, "prefill"), std::pair(WorkerKind::kDecode, "decode")}) {
    int ready = 0;
    int draining = 0;
    int unavailable = 0;
    for (const std::shared_ptr<Worker>& worker : workers.List(kind)) {
      const WorkerState state = worker->state();
      ++(state == WorkerState::kReady      ? ready
         : state == WorkerState::kDraining ? draining
                                           : unavailable);
    }
    writer.Set(metrics::kWorkers, {role, "ready"}, ready);
    writer.Set(metrics::kWorkers, {role, "draining"}, draining);
    writer.Set(metrics::kWorkers, {role, "unavailable"}, unavailable);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(const RouterOptions& options) {
  std::unique_ptr<RouterServer> server(new RouterServer());
  BATON_RETURN_IF_ERROR(server->Init(options));
  return server;
}

absl::Status RouterServer::Init(const RouterOptions& options) {
  core_.timers = std::make_shared<TimerQueue>();
  BATON_ASSIGN_OR_RETURN(core_.model, LoadServedModel(options.model, options.model_name));
  core_.default_max_tokens = options.default_max_tokens;
  registry_ = std::make_shared<metrics::Registry>(metrics::RegistryOptions{
      .model_name = core_.model->name, .role = "router", .vllm_aliases = options.vllm_metrics});
  core_.metrics = std::make_unique<RouterMetrics>(registry_);
  BATON_ASSIGN_OR_RETURN(core_.spans,
                         trace::OpenSpanFile(options.trace,
                                             "baton-router",
                                             BATON_VERSION,
                                             trace::ToHex(trace::NewTraceId()),
                                             registry_));
  core_.prompt_pool = std::make_unique<WorkPool>(options.tokenizer_threads, kMaxWaitingPrompts);
  core_.worker_calls = std::make_shared<WorkerCalls>();
  core_.workers = std::make_shared<WorkerSet>(options.tls, core_.timers, core_.worker_calls);
  core_.admission = std::make_shared<Admission>(options.queue, core_.workers);
  core_.workers->set_events({
      .on_change =
          [weak = std::weak_ptr<Admission>(core_.admission)] {
            if (const auto admission = weak.lock()) {
              admission->Dispatch();
            }
          },
      .on_start =
          [weak = std::weak_ptr<WorkerSet>(core_.workers)](const std::shared_ptr<Worker>& worker) {
            if (const auto workers = weak.lock()) {
              Introduce(*workers, worker);
            }
          },
  });
  core_.session_services = {
      .tokenizer = core_.model->tokenizer.tokenizer.get(),
      .admission = core_.admission.get(),
      .homes = &core_.homes,
      .timers = core_.timers.get(),
      .metrics = core_.metrics.get(),
      .counter = &core_.sessions,
      .flow_limits = {.max_attempts = options.max_attempts,
                      .max_stream_buffer_bytes = options.max_stream_buffer_bytes},
      .endpoint_wait = options.endpoint_wait};
  service_ = std::make_unique<InferenceService>(&core_);
  BATON_ASSIGN_OR_RETURN(server_,
                         rpc::Server::Start({.listen = options.listen,
                                             .tls = options.tls,
                                             .exposure = rpc::Exposure::kPublic,
                                             .services = {service_.get()},
                                             .health_names = {kServiceName, kReadiness}}));
  if (!options.metrics_listen.empty()) {
    BATON_ASSIGN_OR_RETURN(
        exposer_, metrics::Exposer::Start(options.metrics_listen, registry_, StatusPages(core_)));
  }
  AddGauges();
  core_.admission->set_on_dispatched([this] { UpdateHealth(); });
  BATON_RETURN_IF_ERROR(StartDiscoveries(options));
  WatchReportAge();
  return absl::OkStatus();
}

absl::Status RouterServer::StartDiscoveries(const RouterOptions& options) {
  const auto start = [this](const char* flag, const std::string& target, WorkerKind kind) {
    auto discovery = StartDiscovery(
        target,
        [workers = core_.workers, kind](const std::vector<std::string>& addresses) {
          workers->SetAddresses(kind, addresses);
        },
        kDnsInterval);
    return discovery.ok()
               ? std::move(discovery)
               : absl::StatusOr<std::unique_ptr<Discovery>>(WithContext(discovery.status(), flag));
  };
  BATON_ASSIGN_OR_RETURN(prefill_discovery_,
                         start("--prefill", options.prefill, WorkerKind::kPrefill));
  BATON_ASSIGN_OR_RETURN(decode_discovery_, start("--decode", options.decode, WorkerKind::kDecode));
  return absl::OkStatus();
}

void RouterServer::AddGauges() {
  registry_->AddGauges([this](metrics::GaugeWriter& writer) {
    const scheduling::QueueTotals queued = core_.admission->queued();
    writer.Set(metrics::kRequestsRunning,
               static_cast<double>(core_.running.size()) - static_cast<double>(queued.requests));
    writer.Set(metrics::kRequestsWaiting, static_cast<double>(queued.requests));
    writer.Set(metrics::kWaitingTokens, static_cast<double>(queued.tokens));
    WriteWorkerCounts(*core_.workers, writer);
    writer.Set(metrics::kBuildInfo, {BATON_VERSION}, 1.0);
    writer.Set(metrics::kProcessStartTime, metrics::ProcessStartSeconds());
    absl::MutexLock lock(&health_mutex_);
    writer.Set(metrics::kReady, ready_ ? 1.0 : 0.0);
  });
}

void RouterServer::UpdateHealth() {
  absl::MutexLock lock(&health_mutex_);
  const bool ready = core_.admission->CanServe() && !core_.draining.load();
  if (ready == ready_) {
    return;
  }
  ready_ = ready;
  spdlog::info("readiness {}", ready ? "SERVING" : "NOT_SERVING");
  for (const char* name : {"", kServiceName, kReadiness}) {
    server_->SetServing(name, ready);
  }
}

void RouterServer::WatchReportAge() {
  core_.timers->After(kReportAgeInterval, [this] {
    core_.admission->Dispatch();
    WatchReportAge();
  });
}

void RouterServer::Drain(absl::Duration timeout) {
  core_.draining = true;
  UpdateHealth();
  // Not only running requests: prompts that wait to be tokenized, and answers that are ready but
  // that the client has not read yet.
  core_.calls.WaitForNone(timeout);
}

RouterServer::~RouterServer() {
  core_.draining = true;
  prefill_discovery_.reset();
  decode_discovery_.reset();
  if (core_.admission != nullptr) {
    core_.admission->set_on_dispatched(nullptr);
  }
  if (registry_ != nullptr) {
    registry_->ClearGauges();
  }
  exposer_.reset();
  if (server_ != nullptr) {
    server_->Shutdown(absl::ZeroDuration());
  }
  if (core_.workers != nullptr) {
    core_.workers->Stop();
  }
  // Their worker calls were cancelled with them and refer to what goes away next.
  BATON_CHECK(core_.sessions.WaitForNone(kSessionEndTimeout));
  core_.timers->Stop();
  if (core_.worker_calls != nullptr) {
    BATON_CHECK(core_.worker_calls->Stop(kWorkerCallGrace));
  }
  if (core_.prompt_pool != nullptr) {
    core_.prompt_pool->Stop();
  }
}

}  // namespace baton::router
