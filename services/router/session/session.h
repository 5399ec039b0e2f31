// One running request: carries out what its RequestFlow decides.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/base/live_counter.h"
#include "common/scheduling/pair_choice.h"
#include "services/router/admission/admission.h"
#include "services/router/router_metrics.h"
#include "services/router/running_requests.h"
#include "services/router/session/decode_call.h"
#include "services/router/session/lease_keeper.h"
#include "services/router/session/prefill_call.h"
#include "services/router/session/request_flow.h"
#include "services/router/session/request_plan.h"
#include "services/router/timer_queue.h"
#include "services/router/workers/conversation_homes.h"

namespace baton::router {

// What sessions share. Everything must outlive every session.
struct SessionServices {
  const text::Tokenizer* tokenizer = nullptr;
  Admission* admission = nullptr;
  ConversationHomes* homes = nullptr;
  TimerQueue* timers = nullptr;
  RouterMetrics* metrics = nullptr;
  LiveCounter* counter = nullptr;
  FlowLimits flow_limits;
  // How long a request waits while nobody can serve it.
  absl::Duration endpoint_wait = absl::Seconds(5);
};

// The RPC that a request came by.
class SessionClient {
 public:
  virtual ~SessionClient() = default;
  // Output or the final status is ready: Take it. From any thread, without any lock of the session.
  virtual void OnOutput() = 0;
};

// Thread-safe. Every event takes the one mutex, changes the flow and appends what has to be done to
// a list; the list is worked off by one thread at a time, in order, without the mutex. So calls
// into gRPC happen in the order in which they were decided, and never under a lock (performance.md
// section 6). Its calls, its client and itself hold each other until the request and both worker
// calls have ended.
class Session final : public AdmissionClient,
                      public DecodeCallOwner,
                      public PrefillCallOwner,
                      public FlowObserver,
                      public std::enable_shared_from_this<Session> {
 public:
  enum class Taken { kNothing, kMessage, kEnd };

  // `client` is told of output until the request has ended. kInvalidArgument: stop strings.
  static absl::StatusOr<std::shared_ptr<Session>> Create(const SessionServices& services,
                                                         RequestPlan plan,
                                                         RunningRequests::Claim claim,
                                                         std::shared_ptr<SessionClient> client);

  // Enters the queue. Everything that follows, a refusal included, comes through Take.
  void Start();

  // The next message for the client, or the end with its status.
  Taken Take(inference::v1::GenerateStreamResponse* message, absl::Status* status);
  // The client is gone.
  void Cancel();
  // Ends the request with `status` unless it has ended.
  void Fail(const absl::Status& status);
  // Accounting, for the client's log line; complete once the request has ended.
  inference::v1::Usage usage() const;

  // AdmissionClient
  void OnPair(AssignedPair pair) override;
  void OnPrefillWorker(WorkerTicket prefill) override;
  // DecodeCallOwner
  void OnDecodeEvent(uint64_t call, worker::v1::DecodeEvent event) override;
  void OnDecodeEnd(uint64_t call, const absl::Status& status) override;
  // PrefillCallOwner
  void OnPrefillEvent(uint64_t call, const worker::v1::PrefillEvent& event) override;
  void OnPrefillEnd(uint64_t call, const absl::Status& status) override;
  // FlowObserver
  void OnFirstToken(absl::Duration since_received) override;
  void OnTokenGap(absl::Duration gap, int tokens) override;
  void OnRetry(RetryReason reason) override;
  void OnResume(bool resumed, bool from_retained_kv) override;

 private:
  // A decided command with what it needs, taken when it was decided.
  using Action = std::function<void()>;

  Session(const SessionServices& services,
          RequestPlan plan,
          RunningRequests::Claim claim,
          std::shared_ptr<SessionClient> client);

  // Gives `event` the flow under the mutex, then works off what it decided.
  template <typename Event>
  void Apply(const Event& event);
  void WorkOff();
  void AddAction(FlowCommand command) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddEndActions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Push(Action action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void AddOpenDecode() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddOpenPrefill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddCancelDecode() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddCancelPrefill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddLeavePrefill() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `worker` retains the request's KV from now on, and nobody else.
  void SetRetainedAt(RequestFlow& flow, std::shared_ptr<Worker> worker)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddStartLease() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddEndpointWait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  AdmissionRequest MakeAdmissionRequest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  scheduling::PairNeeds MakeNeeds() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void NoteDecodeEnd(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotePrefillEnd(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A transfer failed and prefill, which retains its KV, is to ship it again.
  bool ShipsAgain(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogEnd(const absl::Status& status,
              const Timeline& timeline,
              const inference::v1::Usage& usage) const;

  void OnDeadline();
  // `wait`: the number of the wait that the timer was set for.
  void OnEndpointWait(uint64_t wait);

  const LiveCounter::Count counted_;  // first: goes last
  const SessionServices services_;
  const RequestPlan plan_;
  const uint64_t id_;

  mutable absl::Mutex mutex_;
  std::optional<RequestFlow> flow_ ABSL_GUARDED_BY(mutex_);
  std::deque<Action> actions_ ABSL_GUARDED_BY(mutex_);
  bool working_off_ ABSL_GUARDED_BY(mutex_) = false;
  bool end_handled_ ABSL_GUARDED_BY(mutex_) = false;
  RunningRequests::Claim claim_ ABSL_GUARDED_BY(mutex_);
  WorkerTicket prefill_ticket_ ABSL_GUARDED_BY(mutex_);
  WorkerTicket decode_ticket_ ABSL_GUARDED_BY(mutex_);
  // Numbers of the calls whose events count; 0: none.
  uint64_t last_call_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t prefill_number_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t decode_number_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Worker> retained_at_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> avoid_prefill_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> lost_way_to_ ABSL_GUARDED_BY(mutex_);  // the decode worker
  std::optional<uint64_t> avoid_decode_ ABSL_GUARDED_BY(mutex_);
  TimerQueue::Id deadline_timer_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t wait_number_ ABSL_GUARDED_BY(mutex_) = 0;
  // Nobody could serve it when the wait before ended.
  bool unservable_ ABSL_GUARDED_BY(mutex_) = false;

  // Touched only while working off actions.
  std::shared_ptr<SessionClient> client_;
  std::shared_ptr<DecodeCall> decode_call_;
  std::shared_ptr<PrefillCall> prefill_call_;
  std::vector<std::shared_ptr<PrefillCall>> left_prefill_calls_;
  std::shared_ptr<LeaseKeeper> lease_;
};

}  // namespace baton::router
