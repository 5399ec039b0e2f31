#include "services/router/session/lease_keeper.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "grpcpp/client_context.h"
#include "spdlog/spdlog.h"

#include "common/rpc/request_metadata.h"
#include "services/router/session/proto_time.h"

namespace baton::router {
namespace {

// A lease shorter than this is a worker's mistake; it must not make the router spin.
constexpr absl::Duration kMinPeriod = absl::Milliseconds(20);

struct RenewCall {
  grpc::ClientContext context;
  worker::v1::RenewLeaseRequest request;
  worker::v1::RenewLeaseResponse response;
};

}  // namespace

LeaseKeeper::LeaseKeeper(std::shared_ptr<Worker> worker,
                         const worker::v1::Reserved& reservation,
                         TimerQueue* timers)
    : worker_(std::move(worker)),
      reservation_id_(reservation.reservation_id()),
      epoch_(reservation.epoch()),
      period_(std::max(FromProto(reservation.lease()) / 3, kMinPeriod)),
      timers_(timers) {}

std::shared_ptr<LeaseKeeper> LeaseKeeper::Start(std::shared_ptr<Worker> worker,
                                                const worker::v1::Reserved& reservation,
                                                TimerQueue* timers) {
  std::shared_ptr<LeaseKeeper> keeper(new LeaseKeeper(std::move(worker), reservation, timers));
  keeper->Schedule();
  return keeper;
}

void LeaseKeeper::Stop() {
  TimerQueue::Id timer = 0;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    timer = timer_;
  }
  timers_->Cancel(timer);
}

void LeaseKeeper::Schedule() {
  absl::MutexLock lock(&mutex_);
  if (stopped_) {
    return;
  }
  timer_ = timers_->After(period_, [weak = weak_from_this()] {
    if (const auto keeper = weak.lock()) {
      keeper->Renew();
    }
  });
}

void LeaseKeeper::Renew() {
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) {
      return;
    }
  }
  auto call = std::make_shared<RenewCall>();
  call->request.set_reservation_id(reservation_id_);
  call->request.set_epoch(epoch_);
  rpc::SetDeadline(absl::Now() + period_, &call->context);
  worker_->decode_stub().async()->RenewLease(&call->context,
                                             &call->request,
                                             &call->response,
                                             [call, worker = worker_](const grpc::Status& status) {
                                               if (!status.ok()) {
                                                 spdlog::debug("lease renewal failed worker={}: {}",
                                                               worker->address(),
                                                               status.error_message());
                                               }
                                             });
  Schedule();
}

}  // namespace baton::router
