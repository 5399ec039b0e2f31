#include "common/worker/operations/watch_loads.h"

#include <memory>
#include <utility>

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
// Between two looks at whether there is more room than was reported.
constexpr absl::Duration kLookInterval = absl::Milliseconds(10);

// Whether requests that wait for this worker may find room now that had none by the report.
bool HasMoreRoom(const v1::Loads& now, const v1::Loads& reported) {
  return now.free_slots() > reported.free_slots() || now.pages_free() > reported.pages_free();
}

// At every moment exactly one of a write and an alarm is outstanding, and its end decides what
// comes next; so Finish is never called while something of this object is still in use.
class LoadWatch : public grpc::ServerWriteReactor<v1::Loads> {
 public:
  LoadWatch(Worker& worker, absl::Duration interval) : worker_(worker), interval_(interval) {
    Report(GetLoads(worker_));
  }

  void OnWriteDone(bool ok) override {
    if (!ok || !SetAlarm()) {
      Finish(grpc::Status::CANCELLED);
    }
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
  // False: the call is cancelled.
  bool SetAlarm() {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) {
      return false;
    }
    // A new alarm each time: the one before may still be returning from its callback.
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(absl::ToChronoTime(absl::Now() + kLookInterval), [this](bool) { OnAlarm(); });
    return true;
  }

  void OnAlarm() {
    if (cancelled()) {
      Finish(grpc::Status::CANCELLED);
      return;
    }
    v1::Loads now = GetLoads(worker_);
    if (absl::Now() - reported_ >= interval_ || HasMoreRoom(now, loads_)) {
      Report(std::move(now));
    } else if (!SetAlarm()) {
      Finish(grpc::Status::CANCELLED);
    }
  }

  bool cancelled() {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

  void Report(v1::Loads loads) {
    loads_ = std::move(loads);
    reported_ = absl::Now();
    StartWrite(&loads_);
  }

  Worker& worker_;
  const absl::Duration interval_;
  v1::Loads loads_;  // of the last write
  absl::Time reported_;
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
