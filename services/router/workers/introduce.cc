#include "services/router/workers/introduce.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "grpcpp/support/status.h"
#include "spdlog/spdlog.h"

#include "proto/baton/worker/v1/control.pb.h"
#include "proto/baton/worker/v1/prefill.pb.h"
#include "services/router/workers/worker.h"
#include "services/router/workers/worker_calls.h"
#include "services/router/workers/worker_set.h"

namespace baton::router {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);

void Tell(const std::shared_ptr<Worker>& prefill, const worker::v1::IntroduceRequest& request) {
  const auto start = [&](auto* context, const auto* to, auto* response, auto done) {
    prefill->prefill_stub().async()->Introduce(context, to, response, std::move(done));
  };
  prefill->calls().Make<worker::v1::IntroduceResponse>(
      request, kTimeout, start, [prefill](const grpc::Status& status) {
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
