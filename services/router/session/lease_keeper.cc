#include "services/router/session/lease_keeper.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/support/status.h"
#include "spdlog/spdlog.h"

#include "services/router/session/proto_time.h"
#include "services/router/timer_queue.h"
#include "services/router/workers/worker.h"
#include "services/router/workers/worker_calls.h"

namespace baton::router {
namespace {

// A lease shorter than this is a worker's mistake; it must not make the router spin.
constexpr absl::Duration kMinPeriod = absl::Milliseconds(20);

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
  worker::v1::RenewLeaseRequest request;
  request.set_reservation_id(reservation_id_);
  request.set_epoch(epoch_);
  const auto start = [this](auto* context, const auto* to, auto* response, auto done) {
    worker_->decode_stub().async()->RenewLease(context, to, response, std::move(done));
  };
  worker_->calls().Make<worker::v1::RenewLeaseResponse>(
      std::move(request), period_, start, [worker = worker_](const grpc::Status& status) {
        if (!status.ok()) {
          spdlog::debug(
              "lease renewal failed worker={}: {}", worker->address(), status.error_message());
        }
      });
  Schedule();
}

}  // namespace baton::router
