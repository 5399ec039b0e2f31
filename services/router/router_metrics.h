// The router's counters and histograms, looked up once.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/metrics/registry.h"
#include "proto/baton/inference/v1/inference.pb.h"
#include "services/router/session/request_flow.h"

namespace baton::router {

// Thread-safe.
class RouterMetrics {
 public:
  explicit RouterMetrics(std::shared_ptr<metrics::Registry> registry);

  metrics::Registry& registry() { return *registry_; }

  void ObserveFirstToken(absl::Duration since_received);
  // `tokens` tokens came `gap` after the one before.
  void ObserveTokenGap(absl::Duration gap, int tokens);
  void CountRetry(RetryReason reason);
  // An answer that had begun was taken up by another decode worker, or could not be.
  void CountResume(bool resumed, bool from_retained_kv);
  // Time from receiving a request until it entered the queue, and from its pair's choice until the
  // decode call was opened: what the router itself costs.
  void ObserveAdmit(absl::Duration duration);
  void ObserveRoute(absl::Duration duration);
  // A request of Generate or GenerateStream ended.
  void ObserveEnd(const absl::Status& status,
                  const Timeline& timeline,
                  const inference::v1::Usage& usage);
  // A worker's stream ended without its terminal message.
  void CountIncompleteStream(std::string_view worker_role);

 private:
  const std::shared_ptr<metrics::Registry> registry_;
  prometheus::Histogram& time_to_first_token_;
  prometheus::Histogram& inter_token_latency_;
  prometheus::Histogram& request_latency_;
  prometheus::Histogram& queue_time_;
  prometheus::Histogram& stage_admit_;
  prometheus::Histogram& stage_route_;
  prometheus::Histogram& stage_reserve_;
  prometheus::Histogram& stage_prefill_;
  prometheus::Histogram& stage_transfer_;
  prometheus::Histogram& stage_decode_;
  prometheus::Counter& prompt_tokens_;
  prometheus::Counter& generation_tokens_;
  prometheus::Counter& kv_logical_bytes_;
};

}  // namespace baton::router
