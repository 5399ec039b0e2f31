#include "services/router/session/release_kv.h"

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "spdlog/spdlog.h"

#include "common/rpc/request_metadata.h"
#include "proto/baton/worker/v1/prefill.pb.h"
#include "services/router/workers/worker.h"

namespace baton::router {
namespace {

constexpr absl::Duration kReleaseTimeout = absl::Seconds(5);
// A worker that stands still, or to which the way is cut, is asked again.
constexpr absl::Duration kRetryDelay = absl::Seconds(2);
// Then the lease that workers have by default (--retain_lease) has run out.
constexpr absl::Duration kPatience = absl::Minutes(10);

struct ReleaseCall {
  grpc::ClientContext context;
  worker::v1::ReleaseRequest request;
  worker::v1::ReleaseResponse response;
};

bool MayComeBack(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
}

void Release(const std::shared_ptr<Worker>& worker,
             const std::string& request_id,
             absl::Time give_up) {
  auto call = std::make_shared<ReleaseCall>();
  call->request.set_request_id(request_id);
  rpc::SetDeadline(absl::Now() + kReleaseTimeout, &call->context);
  const auto on_end = [call, worker, give_up](const grpc::Status& status) {
    if (status.ok()) {
      return;
    }
    spdlog::debug(
        "release of retained KV failed worker={}: {}", worker->address(), status.error_message());
    if (!MayComeBack(status) || absl::Now() >= give_up) {
      return;
    }
    worker->timers().After(
        kRetryDelay,
        [weak = std::weak_ptr(worker), request_id = call->request.request_id(), give_up] {
          if (const auto locked = weak.lock()) {
            Release(locked, request_id, give_up);
          }
        });
  };
  worker->prefill_stub().async()->Release(&call->context, &call->request, &call->response, on_end);
}

}  // namespace

void ReleaseKv(const std::shared_ptr<Worker>& worker, const std::string& request_id) {
  Release(worker, request_id, absl::Now() + kPatience);
}

}  // namespace baton::router
