#include "services/router/workers/load_watch.h"

#include <functional>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

#include "common/base/live_counter.h"
#include "common/rpc/request_metadata.h"
#include "common/rpc/status_mapping.h"
#include "services/router/session/proto_time.h"
#include "services/router/workers/worker.h"

namespace baton::router {
namespace {

constexpr absl::Duration kInfoTimeout = absl::Seconds(5);
constexpr absl::Duration kReportInterval = absl::Milliseconds(100);

// Lives until both calls are over: gRPC's reactions hold it through self_.
class LoadWatch final : public grpc::ClientReadReactor<worker::v1::Loads> {
 public:
  explicit LoadWatch(const std::shared_ptr<Worker>& worker)
      : counted_(worker->calls().live()), worker_(worker) {}

  static void Run(const std::shared_ptr<LoadWatch>& self, Worker& worker) {
    self->self_ = self;
    rpc::SetDeadline(absl::Now() + kInfoTimeout, &self->info_context_);
    worker.control_stub().async()->GetServerInfo(
        &self->info_context_,
        &self->info_request_,
        &self->info_,
        [raw = self.get()](const grpc::Status& status) { raw->OnInfo(status); });
  }

  void Cancel() {
    info_context_.TryCancel();
    watch_context_.TryCancel();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      return;
    }
    if (const auto worker = worker_.lock()) {
      worker->OnLoads(loads_);
    } else {
      watch_context_.TryCancel();  // it may have gone without knowing of this watch
    }
    StartRead(&loads_);
  }

  void OnDone(const grpc::Status& status) override { End(rpc::FromGrpcStatus(status)); }

 private:
  void OnInfo(const grpc::Status& status) {
    const auto worker = worker_.lock();
    if (!status.ok() || worker == nullptr) {
      End(rpc::FromGrpcStatus(status));
      return;
    }
    worker->OnInfo(info_);
    *watch_request_.mutable_interval() = ToProto(kReportInterval);
    worker->control_stub().async()->WatchLoads(&watch_context_, &watch_request_, this);
    StartRead(&loads_);
    StartCall();
  }

  void End(const absl::Status& status) {
    const std::shared_ptr<LoadWatch> self = std::move(self_);
    if (const auto worker = worker_.lock()) {
      worker->OnWatchEnd(status);
    }
  }

  const LiveCounter::Count counted_;  // first, so that it goes last
  const std::weak_ptr<Worker> worker_;
  std::shared_ptr<LoadWatch> self_;  // shared with gRPC until the last reaction
  grpc::ClientContext info_context_;
  worker::v1::GetServerInfoRequest info_request_;
  worker::v1::ServerInfo info_;
  grpc::ClientContext watch_context_;
  worker::v1::WatchLoadsRequest watch_request_;
  worker::v1::Loads loads_;
};

}  // namespace

std::function<void()> StartLoadWatch(const std::shared_ptr<Worker>& worker) {
  auto watch = std::make_shared<LoadWatch>(worker);
  LoadWatch::Run(watch, *worker);
  return [weak = std::weak_ptr<LoadWatch>(watch)] {
    if (const auto alive = weak.lock()) {
      alive->Cancel();
    }
  };
}

}  // namespace baton::router
