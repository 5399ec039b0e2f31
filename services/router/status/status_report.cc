#include "services/router/status/status_report.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

#include "common/metrics/metric_families.h"
#include "common/scheduling/central_queue.h"
#include "services/router/router_core.h"
#include "services/router/status/metric_sums.h"
#include "services/router/status/worker_report.h"
#include "services/router/workers/worker.h"

namespace baton::router {
namespace {

using nlohmann::ordered_json;

constexpr int kSchema = 1;

std::string_view StateName(const RouterCore& core) {
  if (core.draining.load()) {
    return "draining";
  }
  return core.admission->CanServe() ? "serving" : "not_ready";
}

ordered_json Requests(const RouterCore& core, const MetricSums& sums) {
  const scheduling::QueueTotals queued = core.admission->queued();
  const auto known = static_cast<int64_t>(core.running.size());
  return {{"running", std::max<int64_t>(known - queued.requests, 0)},
          {"waiting", queued.requests},
          {"waiting_tokens", queued.tokens},
          {"ended_by_code", sums.SumsBy(metrics::kRequests.name, "code")},
          {"retries_by_reason", sums.SumsBy(metrics::kRequestRetries.name, "reason")},
          {"resumes_by_outcome", sums.SumsBy(metrics::kResumes.name, "outcome")},
          {"incomplete_streams_by_role", sums.SumsBy(metrics::kStreamIncomplete.name, "reason")}};
}

ordered_json Workers(const RouterCore& core) {
  std::vector<WorkerView> views;
  for (const WorkerKind kind : {WorkerKind::kPrefill, WorkerKind::kDecode}) {
    for (const auto& worker : core.workers->List(kind)) {
      views.push_back(worker->view());
    }
  }
  return WorkerReport(views);
}

}  // namespace

std::string StatusReport(const RouterCore& core, absl::Time started) {
  const auto families = core.metrics->registry().Collect();
  const MetricSums sums(families);
  const absl::Time now = absl::Now();
  const ordered_json report = {
      {"schema", kSchema},
      {"version", BATON_VERSION},
      {"model", core.model->name},
      {"state", StateName(core)},
      {"time_ms", absl::ToUnixMillis(now)},
      {"uptime_seconds", absl::ToDoubleSeconds(now - started)},
      {"requests", Requests(core, sums)},
      {"tokens",
       {{"prompt", sums.Sum(metrics::kPromptTokens.name)},
        {"generated", sums.Sum(metrics::kGenerationTokens.name)}}},
      {"latency_seconds",
       {{"time_to_first_token", sums.Histogram(metrics::kTimeToFirstToken.name)},
        {"inter_token", sums.Histogram(metrics::kInterTokenLatency.name)},
        {"request", sums.Histogram(metrics::kRequestLatency.name)},
        {"queue", sums.Histogram(metrics::kRequestQueueTime.name)}}},
      {"stage_seconds", sums.HistogramsBy(metrics::kStageDuration.name, "stage")},
      {"kv_bytes",
       {{"logical", sums.Sum(metrics::kKvLogicalBytes.name)},
        {"wire", sums.Sum(metrics::kKvWireBytes.name)},
        {"wire_by_format_and_transport", sums.Rows(metrics::kKvWireBytes.name)}}},
      {"workers", Workers(core)}};
  // Names come from outside: what is not UTF-8 in them is replaced.
  return report.dump(-1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace);
}

}  // namespace baton::router
