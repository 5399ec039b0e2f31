#include "common/worker/operations/watch_loads.h"

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/alarm.h"

#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"
#include "common/worker/operations/get_loads.h"
#include "common/worker/worker.h"

namespace baton::worker::operations {
namespace {

constexpr absl::Duration kDefaultInterval = absl::Milliseconds(100);
constexpr absl::Duration kMinInterval = absl::Milliseconds(10);
constexpr absl::Duration kMaxInterval = absl::Seconds(10);

// At every moment exactly one of a write and an alarm is outstanding, and its end decides what
// comes next; so Finish is never called while something of this object is still in use.
class LoadWatch : public grpc::ServerWriteReactor<v1::Loads> {
 public:
  LoadWatch(Worker& worker, absl::Duration interval) : worker_(worker), interval_(interval) {
    Report();
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      if (ok && !cancelled_) {
        // A new alarm each time: the one before may still be returning from its callback.
        alarm_ = std::make_unique<grpc::Alarm>();
        alarm_->Set(absl::ToChronoTime(absl::Now() + interval_), [this](bool) { OnAlarm(); });
        return;
      }
    }
    Finish(grpc::Status::CANCELLED);
  }

  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (alarm_ != nullptr) {
      alarm_->Cancel();
    }
  }

  void OnDone() override { delete this; }

 private:
  void OnAlarm() {
    if (cancelled()) {
      Finish(grpc::Status::CANCELLED);
    } else {
      Report();
    }
  }

  bool cancelled() {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

  void Report() {
    loads_ = GetLoads(worker_);
    StartWrite(&loads_);
  }

  Worker& worker_;
  const absl::Duration interval_;
  v1::Loads loads_;  // of the write in flight
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
};

// Answers a request that makes no sense.
class Refusal : public grpc::ServerWriteReactor<v1::Loads> {
 public:
  explicit Refusal(const absl::Status& status) { Finish(rpc::ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerWriteReactor<v1::Loads>* WatchLoads(Worker& worker,
                                                const v1::WatchLoadsRequest& request) {
  absl::Duration interval = kDefaultInterval;
  if (request.has_interval()) {
    interval =
        absl::Seconds(request.interval().seconds()) + absl::Nanoseconds(request.interval().nanos());
  }
  if (interval < kMinInterval || interval > kMaxInterval) {
    return new Refusal(rpc::InvalidField("interval", "must be in [10 ms, 10 s]"));
  }
  return new LoadWatch(worker, interval);
}

}  // namespace baton::worker::operations
