// The router as a whole: wires its parts, starts and ends them in order.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/metrics/exposer.h"
#include "common/rpc/server.h"
#include "services/router/inference_service.h"
#include "services/router/router_core.h"
#include "services/router/router_options.h"
#include "services/router/workers/discovery.h"

namespace baton::router {

// Thread-safe after Start.
class RouterServer {
 public:
  // Loads the model's text side, listens, finds workers. Errors say which flag is wrong.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(const RouterOptions& options);
  // Ends at once: running requests get CANCELLED or UNAVAILABLE.
  ~RouterServer();
  RouterServer(const RouterServer&) = delete;
  RouterServer& operator=(const RouterServer&) = delete;

  int port() const { return server_->port(); }
  // 0 without --metrics_listen.
  int metrics_port() const { return exposer_ == nullptr ? 0 : exposer_->port(); }
  // Address that clients dial.
  const std::string& address() const { return server_->address(); }
  RouterCore& core() { return core_; }

  // Turns readiness to NOT_SERVING, refuses new requests with UNAVAILABLE reason DRAINING, and
  // returns when none runs any more or after `timeout`.
  void Drain(absl::Duration timeout);

 private:
  RouterServer() = default;
  absl::Status Init(const RouterOptions& options);
  absl::Status StartDiscoveries(const RouterOptions& options);
  void AddGauges();
  // Readiness follows the workers; also looks for reports that have become too old.
  void UpdateHealth() ABSL_LOCKS_EXCLUDED(health_mutex_);
  void WatchReportAge();

  RouterCore core_;
  std::unique_ptr<InferenceService> service_;
  std::shared_ptr<metrics::Registry> registry_;
  std::unique_ptr<metrics::Exposer> exposer_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<Discovery> prefill_discovery_;
  std::unique_ptr<Discovery> decode_discovery_;
  absl::Mutex health_mutex_;
  bool ready_ ABSL_GUARDED_BY(health_mutex_) = false;
};

}  // namespace baton::router
