// What a worker measures: steps, ended requests, shipped KV.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/metrics/registry.h"

namespace baton::worker {

// Thread-safe. Engine gauges are read from the engine at scrape time between WatchEngine and
// Registry::ClearGauges; what the engine observes before WatchEngine is not counted.
class WorkerMetrics : public engine::EngineObserver {
 public:
  // `side` is "prefill" or "decode", the label of expired leases.
  WorkerMetrics(std::shared_ptr<metrics::Registry> registry, std::string side);

  // Publishes the engine's load, and counts its steps, from now on.
  void WatchEngine(const engine::Engine* engine, std::string version);

  void OnStep(int32_t prefill_tokens, int32_t decode_tokens, absl::Duration duration) override;
  void OnLeaseExpired() override;
  void OnSessionTurn(bool extends_kept) override;

  // A request ended here, refused ones included.
  void RecordRequest(const absl::Status& status, const engine::RequestStats& stats);
  // A stream ended without its terminal message.
  void RecordIncomplete(std::string_view reason);
  // KV of `format` left this worker over `transport`.
  void RecordShipped(std::string_view format,
                     std::string_view transport,
                     int64_t wire_bytes,
                     int64_t logical_bytes);
  void RecordChecksumFailure();
  // `transport` carries KV of this worker.
  void RecordTransport(std::string_view transport);

  metrics::Registry& registry() { return *registry_; }

 private:
  void WriteGauges(const engine::Engine& engine,
                   const std::string& version,
                   metrics::GaugeWriter& gauges) const;

  const std::shared_ptr<metrics::Registry> registry_;
  const std::string side_;
  prometheus::Histogram& step_duration_;
  prometheus::Counter& prefill_step_tokens_;
  prometheus::Counter& decode_step_tokens_;
  std::atomic<bool> watching_{false};
  mutable absl::Mutex mutex_;
  std::set<std::string, std::less<>> transports_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::worker
