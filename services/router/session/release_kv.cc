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

struct ReleaseCall {
  grpc::ClientContext context;
  worker::v1::ReleaseRequest request;
  worker::v1::ReleaseResponse response;
};

}  // namespace

void ReleaseKv(const std::shared_ptr<Worker>& worker, const std::string& request_id) {
  auto call = std::make_shared<ReleaseCall>();
  call->request.set_request_id(request_id);
  rpc::SetDeadline(absl::Now() + kReleaseTimeout, &call->context);
  worker->prefill_stub().async()->Release(
      &call->context, &call->request, &call->response, [call, worker](const grpc::Status& status) {
        if (!status.ok()) {
          spdlog::debug("release of retained KV failed worker={}: {}",
                        worker->address(),
                        status.error_message());
        }
      });
}

}  // namespace baton::router
