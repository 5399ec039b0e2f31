#include "services/prefill/prefill_server.h"

#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "spdlog/spdlog.h"

#include "common/base/status_macros.h"
#include "common/handoff/retain/retention.h"
#include "common/handoff/retain/retention_store.h"
#include "common/handoff/send/sender.h"
#include "common/metrics/gauge_writer.h"
#include "common/metrics/metric_families.h"
#include "common/metrics/registry.h"
#include "common/rpc/tls.h"
#include "common/worker/transports.h"
#include "common/worker/worker.h"
#include "common/worker/worker_options.h"
#include "services/prefill/peers/channel_cache.h"
#include "services/prefill/peers/grpc_handshake_client.h"
#include "services/prefill/prefill_service.h"

namespace baton::prefill {
namespace {

// Cancelled streams end at once; longer only on a machine that stands still.
constexpr absl::Duration kStreamEndTimeout = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<PrefillServer>> PrefillServer::Start(worker::WorkerOptions options) {
  std::unique_ptr<PrefillServer> server(new PrefillServer());
  BATON_RETURN_IF_ERROR(server->Bring(std::move(options)));
  return server;
}

absl::Status PrefillServer::Bring(worker::WorkerOptions options) {
  BATON_ASSIGN_OR_RETURN(const auto credentials, rpc::MakeChannelCredentials(options.tls));
  channels_ = std::make_unique<ChannelCache>(credentials, options.tls.server_name);
  handshake_client_ = std::make_unique<GrpcHandshakeClient>(channels_.get());
  BATON_ASSIGN_OR_RETURN(worker_, worker::Worker::Load(std::move(options)));
  BATON_ASSIGN_OR_RETURN(transports_,
                         worker::Transports::Make(worker_->options(),
                                                  credentials,
                                                  /*receives=*/false,
                                                  worker_->transport_device()));
  sender_ = std::make_unique<handoff::Sender>(
      transports_->list(),
      handshake_client_.get(),
      worker_->layout(),
      handoff::SenderOptions{.segment_bytes = worker_->options().segment_bytes});
  metrics::Registry& registry = worker_->metrics().registry();
  retention_ = std::make_unique<handoff::Retention>(
      handoff::RetentionOptions{.budget_bytes = worker_->options().retain_bytes,
                                .lease = worker_->options().retain_lease},
      registry);
  BATON_RETURN_IF_ERROR(worker_->StartEngine(/*reservations=*/nullptr));
  transports_->Watch(worker_->metrics());
  registry.AddGauges([store = &retention_->store()](metrics::GaugeWriter& gauges) {
    gauges.Set(metrics::kKvRetainedBytes, static_cast<double>(store->bytes()));
    gauges.Set(metrics::kKvRetainedEntries, static_cast<double>(store->entries()));
  });
  prefill_service_ = std::make_unique<PrefillService>(
      worker_.get(), sender_.get(), retention_.get(), channels_.get(), &streams_);
  BATON_RETURN_IF_ERROR(
      worker_->StartServer({prefill_service_.get()}, {"baton.worker.v1.Prefill"}));
  return worker_->Open();
}

PrefillServer::~PrefillServer() {
  if (worker_ != nullptr) {
    Shutdown(absl::ZeroDuration());
  }
  if (retention_ != nullptr) {
    retention_->Stop();  // its thread opens transfers
  }
  // Transfers that end only now report to calls, which report to the worker.
  sender_.reset();
  // So does what gRPC's threads tell of streams that this has cancelled.
  if (!streams_.WaitForNone(kStreamEndTimeout)) {
    spdlog::warn("streams to decode workers are open still");
  }
  retention_.reset();   // counts in the worker's registry
  transports_.reset();  // may read the worker's device
}

void PrefillServer::Shutdown(absl::Duration grace) { worker_->Shutdown(grace); }

}  // namespace baton::prefill
