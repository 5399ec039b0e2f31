#include "services/router/workers/introduce.h"

#include <memory>
#include <optional>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "spdlog/spdlog.h"

#include "common/rpc/request_metadata.h"
#include "proto/baton/worker/v1/control.pb.h"
#include "proto/baton/worker/v1/prefill.pb.h"
#include "services/router/workers/worker.h"
#include "services/router/workers/worker_set.h"

namespace baton::router {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);

struct IntroduceCall {
  grpc::ClientContext context;
  worker::v1::IntroduceRequest request;
  worker::v1::IntroduceResponse response;
};

void Tell(const std::shared_ptr<Worker>& prefill, const worker::v1::IntroduceRequest& request) {
  auto call = std::make_shared<IntroduceCall>();
  call->request = request;
  rpc::SetDeadline(absl::Now() + kTimeout, &call->context);
  prefill->prefill_stub().async()->Introduce(
      &call->context, &call->request, &call->response, [call, prefill](const grpc::Status& status) {
        if (!status.ok()) {
          spdlog::debug(
              "introduction failed worker={}: {}", prefill->address(), status.error_message());
        }
      });
}

}  // namespace

void Introduce(const WorkerSet& workers, const std::shared_ptr<Worker>& worker) {
  const bool is_prefill = worker->kind() == WorkerKind::kPrefill;
  const std::vector<std::shared_ptr<Worker>> one = {worker};
  worker::v1::IntroduceRequest request;
  for (const auto& decode : is_prefill ? workers.List(WorkerKind::kDecode) : one) {
    if (!decode->has_role()) {
      continue;
    }
    // Once it is set it stays.
    const std::optional<worker::v1::ServerInfo> info = decode->info();
    if (!info->control_address().empty()) {
      request.add_control_addresses(info->control_address());
    }
  }
  if (request.control_addresses().empty()) {
    return;
  }
  for (const auto& prefill : is_prefill ? one : workers.List(WorkerKind::kPrefill)) {
    if (prefill->has_role()) {
      Tell(prefill, request);
    }
  }
}

}  // namespace baton::router
