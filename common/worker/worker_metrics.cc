#include "common/worker/worker_metrics.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/synchronization/mutex.h"

#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/metrics/gauge_writer.h"
#include "common/metrics/metric_families.h"
#include "common/metrics/process_start.h"
#include "common/metrics/registry.h"
#include "common/rpc/status_mapping.h"

namespace baton::worker {
namespace {

void ObserveStage(metrics::Registry& registry, std::string_view stage, absl::Duration duration) {
  if (duration > absl::ZeroDuration()) {
    registry.Get(metrics::kStageDuration, {stage}).Observe(absl::ToDoubleSeconds(duration));
  }
}

// Counters of rare events exist from the start: Prometheus sees no increase in a series that begins
// at one.
void BeginAtZero(metrics::Registry& registry, std::string_view side) {
  registry.Get(metrics::kKvLeasesExpired, {side});
  registry.Get(metrics::kKvChecksumFailures);
  registry.Get(metrics::kSessionTurns, {"kept"});
  registry.Get(metrics::kSessionTurns, {"fresh"});
  for (int i = 0; i <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++i) {
    const auto code = static_cast<absl::StatusCode>(i);
    registry.Get(metrics::kRequests, {rpc::CodeName(code)});
    if (code != absl::StatusCode::kOk) {
      registry.Get(metrics::kStreamIncomplete, {rpc::CodeName(code)});
    }
  }
}

}  // namespace

WorkerMetrics::WorkerMetrics(std::shared_ptr<metrics::Registry> registry, std::string side)
    : registry_(std::move(registry)),
      side_(std::move(side)),
      step_duration_(registry_->Get(metrics::kStepDuration)),
      prefill_step_tokens_(registry_->Get(metrics::kStepTokens, {"prefill"})),
      decode_step_tokens_(registry_->Get(metrics::kStepTokens, {"decode"})) {
  BeginAtZero(*registry_, side_);
}

void WorkerMetrics::WatchEngine(const engine::Engine* engine, std::string version) {
  watching_.store(true);
  registry_->AddGauges([this, engine, version = std::move(version)](metrics::GaugeWriter& gauges) {
    WriteGauges(*engine, version, gauges);
  });
}

void WorkerMetrics::OnStep(int32_t prefill_tokens, int32_t decode_tokens, absl::Duration duration) {
  if (!watching_.load()) {
    return;
  }
  step_duration_.Observe(absl::ToDoubleSeconds(duration));
  prefill_step_tokens_.Increment(prefill_tokens);
  decode_step_tokens_.Increment(decode_tokens);
}

void WorkerMetrics::OnLeaseExpired() {
  registry_->Get(metrics::kKvLeasesExpired, {side_}).Increment();
}

void WorkerMetrics::OnSessionTurn(bool extends_kept) {
  registry_->Get(metrics::kSessionTurns, {extends_kept ? "kept" : "fresh"}).Increment();
}

void WorkerMetrics::RecordRequest(const absl::Status& status, const engine::RequestStats& stats) {
  metrics::Registry& registry = *registry_;
  registry.Get(metrics::kRequests, {rpc::CodeName(status.code())}).Increment();
  registry.Get(metrics::kPromptTokens).Increment(static_cast<double>(stats.prompt_tokens));
  registry.Get(metrics::kCachedPromptTokens).Increment(static_cast<double>(stats.cached_tokens));
  registry.Get(metrics::kGenerationTokens).Increment(static_cast<double>(stats.completion_tokens));
  if (stats.queue_time > absl::ZeroDuration()) {
    registry.Get(metrics::kRequestQueueTime).Observe(absl::ToDoubleSeconds(stats.queue_time));
  }
  ObserveStage(registry, metrics::stage::kPrefillQueue, stats.queue_time);
  ObserveStage(registry, metrics::stage::kPrefillForward, stats.prefill_time);
  ObserveStage(registry, metrics::stage::kCompress, stats.compress_time);
  ObserveStage(registry, metrics::stage::kTransfer, stats.transfer_time);
  ObserveStage(registry, metrics::stage::kDecompress, stats.decompress_time);
  ObserveStage(registry, metrics::stage::kDecodeQueue, stats.decode_queue_time);
  ObserveStage(registry, metrics::stage::kFirstDecodeStep, stats.first_decode_step_time);
  ObserveStage(registry, metrics::stage::kDecode, stats.decode_time);
}

void WorkerMetrics::RecordIncomplete(std::string_view reason) {
  registry_->Get(metrics::kStreamIncomplete, {reason}).Increment();
}

void WorkerMetrics::RecordShipped(std::string_view format,
                                  std::string_view transport,
                                  int64_t wire_bytes,
                                  int64_t logical_bytes) {
  RecordTransport(transport);
  registry_->Get(metrics::kKvWireBytes, {format, transport})
      .Increment(static_cast<double>(wire_bytes));
  registry_->Get(metrics::kKvLogicalBytes).Increment(static_cast<double>(logical_bytes));
}

void WorkerMetrics::RecordChecksumFailure() {
  registry_->Get(metrics::kKvChecksumFailures).Increment();
}

void WorkerMetrics::RecordTransport(std::string_view transport) {
  absl::MutexLock lock(&mutex_);
  transports_.emplace(transport);
}

void WorkerMetrics::WriteGauges(const engine::Engine& engine,
                                const std::string& version,
                                metrics::GaugeWriter& gauges) const {
  const engine::EngineLoad load = engine.load();
  const auto set = [&](const auto& family, int64_t value) {
    gauges.Set(family, static_cast<double>(value));
  };
  set(metrics::kRequestsRunning, load.running_sequences - load.unstarted_sequences);
  set(metrics::kRequestsWaiting, load.waiting_requests + load.unstarted_requests);
  set(metrics::kWaitingTokens, load.waiting_tokens);
  set(metrics::kKvReservedPages, load.pages_reserved);
  set(metrics::kKvOrphanedBytes, load.orphaned_bytes);
  set(metrics::kKvLeasesActive, load.reservations);
  set(metrics::kKvKeptSessions, load.kept_sessions);
  set(metrics::kKvKeptBytes, load.kept_bytes);
  set(metrics::kKvPageTokens, engine.options().page_tokens);
  const int64_t used = load.pages_total - load.pages_free - load.pages_reserved;
  gauges.Set(metrics::kKvPages, {"free"}, static_cast<double>(load.pages_free));
  gauges.Set(metrics::kKvPages, {"reserved"}, static_cast<double>(load.pages_reserved));
  gauges.Set(metrics::kKvPages, {"used"}, static_cast<double>(used));
  for (const engine::FormatPool& pool : load.format_pools) {
    gauges.Set(
        metrics::kKvFormatPoolBytes, {pool.format, "free"}, static_cast<double>(pool.bytes.free));
    gauges.Set(metrics::kKvFormatPoolBytes,
               {pool.format, "used"},
               static_cast<double>(pool.bytes.total - pool.bytes.free));
  }
  gauges.Set(metrics::kBuildInfo, {version}, 1);
  gauges.Set(metrics::kProcessStartTime, metrics::ProcessStartSeconds());
  absl::MutexLock lock(&mutex_);
  for (const std::string& transport : transports_) {
    gauges.Set(metrics::kKvTransportInfo, {transport}, 1);
  }
}

}  // namespace baton::worker
