#include "services/router/session/release_kv.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/support/status.h"
#include "spdlog/spdlog.h"

#include "proto/baton/worker/v1/prefill.pb.h"
#include "services/router/workers/worker.h"
#include "services/router/workers/worker_calls.h"

namespace baton::router {
namespace {

constexpr absl::Duration kReleaseTimeout = absl::Seconds(5);
// A worker that stands still, or to which the way is cut, is asked again.
constexpr absl::Duration kRetryDelay = absl::Seconds(2);
// Then the lease that workers have by default (--retain_lease) has run out.
constexpr absl::Duration kPatience = absl::Minutes(10);

bool MayComeBack(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
}

void Release(const std::shared_ptr<Worker>& worker,
             const std::string& request_id,
             absl::Time give_up) {
  worker::v1::ReleaseRequest request;
  request.set_request_id(request_id);
  const auto start = [&](auto* context, const auto* to, auto* response, auto done) {
    worker->prefill_stub().async()->Release(context, to, response, std::move(done));
  };
  const auto on_end = [worker, request_id, give_up](const grpc::Status& status) {
    if (status.ok()) {
      return;
    }
    spdlog::debug(
        "release of retained KV failed worker={}: {}", worker->address(), status.error_message());
    if (!MayComeBack(status) || absl::Now() >= give_up) {
      return;
    }
    worker->timers().After(kRetryDelay, [weak = std::weak_ptr(worker), request_id, give_up] {
      if (const auto locked = weak.lock()) {
        Release(locked, request_id, give_up);
      }
    });
  };
  worker->calls().Make<worker::v1::ReleaseResponse>(
      std::move(request), kReleaseTimeout, start, on_end);
}

}  // namespace

void ReleaseKv(const std::shared_ptr<Worker>& worker, const std::string& request_id) {
  Release(worker, request_id, absl::Now() + kPatience);
}

}  // namespace baton::router
