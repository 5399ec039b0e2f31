#include "services/router/router_metrics.h"

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "common/metrics/metric_families.h"
#include "common/metrics/registry.h"
#include "common/rpc/status_mapping.h"
#include "services/router/session/proto_time.h"
#include "services/router/session/request_flow.h"
#include "services/router/session/timeline.h"

namespace baton::router {
namespace {

namespace stage = metrics::stage;

std::string_view RetryLabel(RetryReason reason) {
  switch (reason) {
    case RetryReason::kDecodeRefused:
      return "decode_refused";
    case RetryReason::kDecodeLost:
      return "decode_lost";
    case RetryReason::kPrefillBusy:
      return "prefill_busy";
    case RetryReason::kPrefillLost:
      return "prefill_lost";
  }
  return "other";
}

// Counters of rare events exist from the start: Prometheus sees no increase in a series that begins
// at one.
void BeginAtZero(metrics::Registry& registry) {
  for (int i = 0; i <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++i) {
    registry.Get(metrics::kRequests, {rpc::CodeName(static_cast<absl::StatusCode>(i))});
  }
  for (const RetryReason reason : {RetryReason::kDecodeRefused,
                                   RetryReason::kDecodeLost,
                                   RetryReason::kPrefillBusy,
                                   RetryReason::kPrefillLost}) {
    registry.Get(metrics::kRequestRetries, {RetryLabel(reason)});
  }
  for (const std::string_view outcome : {"resumed", "failed"}) {
    registry.Get(metrics::kResumes, {"reprefill", outcome});
    registry.Get(metrics::kResumes, {"retained_kv", outcome});
  }
  for (const std::string_view role : {"prefill", "decode"}) {
    registry.Get(metrics::kStreamIncomplete, {role});
  }
}

void ObserveBetween(prometheus::Histogram& histogram,
                    const std::optional<absl::Time>& from,
                    const std::optional<absl::Time>& to) {
  if (from.has_value() && to.has_value() && *to >= *from) {
    histogram.Observe(absl::ToDoubleSeconds(*to - *from));
  }
}

}  // namespace

RouterMetrics::RouterMetrics(std::shared_ptr<metrics::Registry> registry)
    : registry_(std::move(registry)),
      time_to_first_token_(registry_->Get(metrics::kTimeToFirstToken)),
      inter_token_latency_(registry_->Get(metrics::kInterTokenLatency)),
      request_latency_(registry_->Get(metrics::kRequestLatency)),
      queue_time_(registry_->Get(metrics::kRequestQueueTime)),
      stage_admit_(registry_->Get(metrics::kStageDuration, {stage::kAdmit})),
      stage_route_(registry_->Get(metrics::kStageDuration, {stage::kRoute})),
      stage_reserve_(registry_->Get(metrics::kStageDuration, {stage::kReserve})),
      stage_prefill_(registry_->Get(metrics::kStageDuration, {stage::kPrefillForward})),
      stage_transfer_(registry_->Get(metrics::kStageDuration, {stage::kTransfer})),
      stage_decode_(registry_->Get(metrics::kStageDuration, {stage::kDecode})),
      prompt_tokens_(registry_->Get(metrics::kPromptTokens)),
      generation_tokens_(registry_->Get(metrics::kGenerationTokens)),
      kv_logical_bytes_(registry_->Get(metrics::kKvLogicalBytes)) {
  BeginAtZero(*registry_);
}

void RouterMetrics::ObserveFirstToken(absl::Duration since_received) {
  time_to_first_token_.Observe(absl::ToDoubleSeconds(since_received));
}

void RouterMetrics::ObserveTokenGap(absl::Duration gap, int tokens) {
  for (int i = 0; i < tokens; ++i) {
    inter_token_latency_.Observe(absl::ToDoubleSeconds(gap) / tokens);
  }
}

void RouterMetrics::CountRetry(RetryReason reason) {
  registry_->Get(metrics::kRequestRetries, {RetryLabel(reason)}).Increment();
}

void RouterMetrics::CountResume(bool resumed, bool from_retained_kv) {
  registry_
      ->Get(metrics::kResumes,
            {from_retained_kv ? "retained_kv" : "reprefill", resumed ? "resumed" : "failed"})
      .Increment();
}

void RouterMetrics::ObserveAdmit(absl::Duration duration) {
  stage_admit_.Observe(absl::ToDoubleSeconds(duration));
}

void RouterMetrics::ObserveRoute(absl::Duration duration) {
  stage_route_.Observe(absl::ToDoubleSeconds(duration));
}

void RouterMetrics::CountIncompleteStream(std::string_view worker_role) {
  registry_->Get(metrics::kStreamIncomplete, {worker_role}).Increment();
}

void RouterMetrics::ObserveEnd(const absl::Status& status,
                               const Timeline& timeline,
                               const inference::v1::Usage& usage) {
  registry_->Get(metrics::kRequests, {rpc::CodeName(status.code())}).Increment();
  ObserveBetween(queue_time_, timeline.queued, timeline.dispatched);
  ObserveBetween(stage_reserve_, timeline.dispatched, timeline.reserved);
  ObserveBetween(stage_prefill_, timeline.reserved, timeline.first_token);
  ObserveBetween(stage_transfer_, timeline.first_token, timeline.committed);
  ObserveBetween(stage_decode_, timeline.first_token, timeline.finished);
  if (status.ok()) {
    ObserveBetween(request_latency_, timeline.received, timeline.finished);
  }
  prompt_tokens_.Increment(usage.prompt_tokens());
  generation_tokens_.Increment(usage.completion_tokens());
  if (usage.kv_wire_bytes() > 0) {
    kv_logical_bytes_.Increment(static_cast<double>(usage.kv_logical_bytes()));
    registry_->Get(metrics::kKvWireBytes, {usage.kv_format(), usage.transport()})
        .Increment(static_cast<double>(usage.kv_wire_bytes()));
  }
}

}  // namespace baton::router
