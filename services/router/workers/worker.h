// A worker as the router sees it: its channel, what it is, how loaded it is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"

#include "common/scheduling/pair_choice.h"
#include "proto/baton/worker/v1/control.grpc.pb.h"
#include "proto/baton/worker/v1/decode.grpc.pb.h"
#include "proto/baton/worker/v1/prefill.grpc.pb.h"
#include "services/router/timer_queue.h"
#include "services/router/workers/worker_calls.h"

namespace baton::router {

enum class WorkerKind { kPrefill, kDecode };

// Reports older than this are not believed: the worker hangs.
inline constexpr absl::Duration kMaxReportAge = absl::Seconds(10);

// Whether requests go to a worker, and if not, why: the first that holds.
enum class WorkerState {
  kConnecting,  // no report has come since the connection was lost, or ever
  kWrongRole,   // listed for another role
  kDraining,
  kNotReady,  // says so itself
  kSilent,    // its last report is older than kMaxReportAge
  kSuspect,   // a call failed as if it were gone; until its next report
  kReady,
};

// A worker at one moment, for people who look.
struct WorkerView {
  WorkerKind kind = WorkerKind::kPrefill;
  std::string address;
  WorkerState state = WorkerState::kConnecting;
  bool full = false;  // refused a request for lack of room and has not reported since
  std::optional<worker::v1::ServerInfo> info;  // unset before the first answer
  worker::v1::Loads loads;
  absl::Duration report_age;  // infinite before the first report
};

// One worker address. Start connects, asks for ServerInfo and watches loads, for ever again with
// back-off, until Stop. Thread-safe; held by shared_ptr because calls refer to it.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  // Called without any lock of the worker.
  struct Events {
    // Its load or readiness changed.
    std::function<void()> on_change;
    // It has said what it is, for the first time or since it restarted.
    std::function<void(const std::shared_ptr<Worker>&)> on_start;
  };

  Worker(uint64_t id,
         WorkerKind kind,
         std::string address,
         std::shared_ptr<grpc::Channel> channel,
         std::shared_ptr<TimerQueue> timers,
         std::shared_ptr<WorkerCalls> calls,
         Events events);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Start();
  // Ends watching; no event comes once this has returned and the running call is over.
  void Stop();

  uint64_t id() const { return id_; }
  WorkerKind kind() const { return kind_; }
  const std::string& address() const { return address_; }
  worker::v1::Prefill::Stub& prefill_stub() { return *prefill_stub_; }
  worker::v1::Decode::Stub& decode_stub() { return *decode_stub_; }
  worker::v1::Control::Stub& control_stub() { return *control_stub_; }
  // For calls to the worker that are to be made later.
  TimerQueue& timers() { return *timers_; }
  // Counts calls to the worker, and makes those that no request waits for.
  WorkerCalls& calls() { return *calls_; }

  // ServerInfo of the present incarnation; unset before the first answer.
  std::optional<worker::v1::ServerInfo> info() const;
  // Whether that has come and the role is the one that the worker is listed for.
  bool has_role() const;
  WorkerState state() const;
  WorkerView view() const;
  scheduling::PrefillLoad prefill_load() const;
  scheduling::DecodeLoad decode_load() const;

  // A call failed as if the worker were gone: not chosen before its next report.
  void Suspect();
  // A call was refused for lack of room: none is made before its next report, and from then on a
  // decode worker is sent one request at a time, one more for each that it accepts. How much room
  // it has the worker alone knows: all that wait would be sent, and refused, whenever a little came
  // free.
  void MarkFull();

  // --- Accounting by WorkerTicket ---
  void AddUnreported(int64_t tokens);
  // The worker has accepted the request: its next report will count it. True: it may be sent more
  // at a time than before, which requests may wait for (NotifyRoom).
  bool Acknowledge(int64_t tokens);
  void RemoveUnreported(int64_t tokens);
  // Has requests that wait look at its load again. Not under a session's lock.
  void NotifyRoom() { events_.on_change(); }

  // --- Events of the watch (workers/load_watch.h) ---
  void OnInfo(const worker::v1::ServerInfo& info);
  void OnLoads(const worker::v1::Loads& loads);
  // The watch ended: connects again after a back-off.
  void OnWatchEnd(const absl::Status& status);

 private:
  void Connect();
  WorkerState State() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return State() == WorkerState::kReady;
  }
  scheduling::Place PlaceOf() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t PoolTokens() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool RoleFits(const worker::v1::ServerInfo& info) const;

  const uint64_t id_;
  const WorkerKind kind_;
  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<worker::v1::Prefill::Stub> prefill_stub_;
  const std::unique_ptr<worker::v1::Decode::Stub> decode_stub_;
  const std::unique_ptr<worker::v1::Control::Stub> control_stub_;
  const std::shared_ptr<TimerQueue> timers_;
  const std::shared_ptr<WorkerCalls> calls_;
  const Events events_;

  mutable absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> cancel_watch_ ABSL_GUARDED_BY(mutex_);
  absl::Duration backoff_ ABSL_GUARDED_BY(mutex_);
  std::optional<worker::v1::ServerInfo> info_ ABSL_GUARDED_BY(mutex_);
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;
  bool suspect_ ABSL_GUARDED_BY(mutex_) = false;
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
  // Requests that may be sent and not acknowledged at a time; at first more than ever wait.
  int64_t window_ ABSL_GUARDED_BY(mutex_) = int64_t{1} << 20;
  worker::v1::Loads loads_ ABSL_GUARDED_BY(mutex_);
  absl::Time reported_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Sent and not acknowledged, and acknowledged since the last report.
  int64_t unacknowledged_requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t unacknowledged_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t recent_requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t recent_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A request's claim on a worker until the worker's reports count it. Movable; not thread-safe.
class WorkerTicket {
 public:
  WorkerTicket() = default;
  WorkerTicket(std::shared_ptr<Worker> worker, int64_t tokens);
  ~WorkerTicket();
  WorkerTicket(WorkerTicket&& other) noexcept;
  WorkerTicket& operator=(WorkerTicket&& other) noexcept;

  explicit operator bool() const { return worker_ != nullptr; }
  const std::shared_ptr<Worker>& worker() const { return worker_; }
  // The worker has accepted the request. True: see Worker::Acknowledge.
  bool Acknowledge();

 private:
  std::shared_ptr<Worker> worker_;
  int64_t tokens_ = 0;
  bool acknowledged_ = false;
};

}  // namespace baton::router
