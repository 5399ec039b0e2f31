#include "services/router/session/session.h"

#include <atomic>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "common/rpc/request_log.h"
#include "common/scheduling/pair_choice.h"
#include "services/router/admission/admission.h"
#include "services/router/running_requests.h"
#include "services/router/session/request_flow.h"
#include "services/router/session/request_plan.h"
#include "services/router/session/timeline.h"
#include "services/router/session/worker_failure.h"
#include "services/router/timer_queue.h"
#include "services/router/workers/worker.h"

namespace baton::router {
namespace {

uint64_t NextSessionId() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

Session::Session(const SessionServices& services,
                 RequestPlan plan,
                 RunningRequests::Claim claim,
                 std::shared_ptr<SessionClient> client)
    : counted_(services.counter),
      services_(services),
      plan_(std::move(plan)),
      id_(NextSessionId()),
      claim_(std::move(claim)),
      client_(std::move(client)) {}

absl::StatusOr<std::shared_ptr<Session>> Session::Create(const SessionServices& services,
                                                         RequestPlan plan,
                                                         RunningRequests::Claim claim,
                                                         std::shared_ptr<SessionClient> client) {
  std::shared_ptr<Session> session(
      new Session(services, std::move(plan), std::move(claim), std::move(client)));
  auto flow =
      RequestFlow::Create(&session->plan_, services.tokenizer, services.flow_limits, session.get());
  if (!flow.ok()) {
    return flow.status();
  }
  absl::MutexLock lock(&session->mutex_);
  session->flow_.emplace(*std::move(flow));
  return session;
}

void Session::Start() {
  if (plan_.deadline != absl::InfiniteFuture()) {
    const TimerQueue::Id timer = services_.timers->At(plan_.deadline, [weak = weak_from_this()] {
      if (const auto session = weak.lock()) {
        session->OnDeadline();
      }
    });
    absl::MutexLock lock(&mutex_);
    deadline_timer_ = timer;
  }
  const absl::Time now = absl::Now();
  services_.metrics->ObserveAdmit(now - plan_.received);
  Apply([&](RequestFlow& flow) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (flow.ended()) {  // the deadline passed or the client left before this
      return;
    }
    flow.OnQueued(now);
    Push([this, request = MakeAdmissionRequest()] {
      const absl::Status status = services_.admission->Enqueue(request);
      if (!status.ok()) {
        Fail(status);
      }
    });
    AddEndpointWait();
  });
}

template <typename Event>
void Session::Apply(const Event& event) {
  const std::shared_ptr<Session> self = shared_from_this();
  {
    absl::MutexLock lock(&mutex_);
    event(*flow_);
    for (const FlowCommand command : flow_->TakeCommands()) {
      AddAction(command);
    }
    if (flow_->ended() && !end_handled_) {
      end_handled_ = true;
      AddEndActions();
    }
    if (working_off_) {
      return;  // whoever works off sees the new actions
    }
    working_off_ = true;
  }
  WorkOff();
}

void Session::WorkOff() {
  while (true) {
    Action action;
    {
      absl::MutexLock lock(&mutex_);
      if (actions_.empty()) {
        working_off_ = false;
        return;
      }
      action = std::move(actions_.front());
      actions_.pop_front();
    }
    action();
  }
}

Session::Taken Session::Take(inference::v1::GenerateStreamResponse* message, absl::Status* status) {
  Taken taken = Taken::kNothing;
  Apply([&](RequestFlow& flow) {
    if (flow.output().Pop(message)) {
      taken = Taken::kMessage;
      flow.OnOutputTaken();
    } else if (flow.ended()) {
      taken = Taken::kEnd;
      *status = flow.final_status();
    }
  });
  return taken;
}

void Session::Cancel() {
  Apply([](RequestFlow& flow) { flow.OnClientCancelled(absl::Now()); });
}

inference::v1::Usage Session::usage() const {
  absl::MutexLock lock(&mutex_);
  return flow_->usage();
}

void Session::Fail(const absl::Status& status) {
  Apply([&](RequestFlow& flow) { flow.Fail(status, absl::Now()); });
}

void Session::OnDeadline() {
  Apply([](RequestFlow& flow) { flow.OnDeadline(absl::Now()); });
}

void Session::OnEndpointWait(uint64_t wait) {
  scheduling::PairNeeds needs;
  {
    absl::MutexLock lock(&mutex_);
    needs = MakeNeeds();
  }
  const bool can_serve = services_.admission->CanServe(needs);
  const bool can_prefill = services_.admission->CanPrefill(needs);
  const absl::Time now = absl::Now();
  const bool expired = now - services_.admission->unservable_since() >= services_.endpoint_wait;
  Apply([&](RequestFlow& flow) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (wait != wait_number_ || !flow.waits_for_worker()) {
      return;
    }
    const bool still_unservable = std::exchange(unservable_, !can_serve) && !can_serve;
    if (flow.phase() == RequestFlow::Phase::kAwaitingPrefill && !can_prefill) {
      flow.OnPrefillWaitExpired(can_serve, now);
    } else if (flow.phase() == RequestFlow::Phase::kQueued && !can_serve &&
               (expired || still_unservable)) {
      flow.OnEndpointsGone(now);
    } else {
      AddEndpointWait();
    }
  });
}

void Session::OnPair(AssignedPair pair) {
  Apply([&](RequestFlow& flow) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (flow.phase() != RequestFlow::Phase::kQueued) {
      return;  // ended meanwhile: the tickets give themselves back
    }
    unservable_ = false;
    const bool local_prefill = !pair.prefill;
    prefill_ticket_ = std::move(pair.prefill);
    decode_ticket_ = std::move(pair.decode);
    flow.OnPair(local_prefill, absl::Now());
  });
}

void Session::OnPrefillWorker(WorkerTicket prefill) {
  Apply([&](RequestFlow& flow) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (flow.phase() != RequestFlow::Phase::kAwaitingPrefill) {
      return;
    }
    unservable_ = false;
    prefill_ticket_ = std::move(prefill);
    flow.OnPrefillWorker(absl::Now());
  });
}

void Session::OnDecodeEvent(uint64_t call, worker::v1::DecodeEvent event) {
  Apply([&](RequestFlow& flow) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (call != decode_number_) {
      return;
    }
    if (event.has_reserved()) {
      if (decode_ticket_.Acknowledge()) {
        Push([worker = decode_ticket_.worker()] { worker->NotifyRoom(); });
      }
      services_.homes->Set(plan_.session_id, decode_ticket_.worker()->id());
    }
    flow.OnDecodeEvent(std::move(event), absl::Now());
  });
}

void Session::OnDecodeEnd(uint64_t call, const absl::Status& status) {
  Apply([&](RequestFlow& flow) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (call == decode_number_ && !flow.ended()) {
      NoteDecodeEnd(status);
      flow.OnDecodeEnd(status, absl::Now());
    }
  });
}

void Session::NoteDecodeEnd(const absl::Status& status) {
  const std::shared_ptr<Worker>& worker = decode_ticket_.worker();
  const bool reserving = flow_->phase() == RequestFlow::Phase::kReserving;
  if (ClassifyDecodeFailure(status, reserving) == WorkerFailure::kBusy) {
    worker->MarkFull();
  } else if (status.ok() && !flow_->has_decode_usage()) {
    services_.metrics->CountIncompleteStream("decode");
    avoid_decode_ = worker->id();
  } else if (!status.ok()) {
    avoid_decode_ = worker->id();
    if (absl::IsUnavailable(status) || absl::IsUnknown(status)) {
      Push([worker] { worker->Suspect(); });
    }
  }
}

void Session::OnPrefillEvent(uint64_t call, const worker::v1::PrefillEvent& event) {
  Apply([&](RequestFlow& flow) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (call != prefill_number_) {
      return;
    }
    prefill_ticket_.Acknowledge();
    if (event.has_accepted()) {
      SetRetainedAt(flow, event.accepted().retains_kv() ? prefill_ticket_.worker() : nullptr);
    }
    flow.OnPrefillEvent(event, absl::Now());
  });
}

void Session::OnPrefillEnd(uint64_t call, const absl::Status& status) {
  Apply([&](RequestFlow& flow) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (call == prefill_number_ && !flow.ended()) {
      NotePrefillEnd(status);
      flow.OnPrefillEnd(status, absl::Now());
    }
  });
}

void Session::NotePrefillEnd(const absl::Status& status) {
  const std::shared_ptr<Worker>& worker = prefill_ticket_.worker();
  if (status.ok() && flow_->has_commit()) {
    return;
  }
  if (status.ok()) {
    services_.metrics->CountIncompleteStream("prefill");
  }
  if (ShipsAgain(status)) {
    return;
  }
  SetRetainedAt(*flow_, nullptr);
  if (ClassifyPrefillFailure(status) == WorkerFailure::kBusy) {
    worker->MarkFull();
    return;
  }
  avoid_prefill_ = worker->id();
  if (absl::IsUnavailable(status) || absl::IsUnknown(status)) {
    Push([worker] { worker->Suspect(); });
  }
}

// Where the same decode worker was lost twice, the way to it counts as cut: another prefill worker
// computes the prompt anew, if there is one. What was damaged twice is not sent a third time.
bool Session::ShipsAgain(const absl::Status& status) {
  if (retained_at_ != prefill_ticket_.worker()) {
    return false;
  }
  if (LostAtDecode(status)) {
    const std::shared_ptr<Worker>& decode = decode_ticket_.worker();
    Push([decode] { decode->Suspect(); });  // it may be dead, and this the first to know
    avoid_decode_ = decode->id();
    if (std::exchange(lost_way_to_, decode->id()) == decode->id()) {
      avoid_prefill_ = retained_at_->id();
    }
    return true;
  }
  return absl::IsDataLoss(status) && !flow_->data_loss_seen();
}

void Session::OnFirstToken(absl::Duration since_received) {
  services_.metrics->ObserveFirstToken(since_received);
}

void Session::OnTokenGap(absl::Duration gap, int tokens) {
  services_.metrics->ObserveTokenGap(gap, tokens);
}

void Session::OnRetry(RetryReason reason) { services_.metrics->CountRetry(reason); }

void Session::OnResume(bool resumed, bool from_retained_kv) {
  services_.metrics->CountResume(resumed, from_retained_kv);
}

void Session::LogEnd(const absl::Status& status,
                     const Timeline& timeline,
                     const inference::v1::Usage& usage) const {
  rpc::LogRequest({.rpc = "Inference.Generate",
                   .request_id = plan_.request_id,
                   .traceparent = plan_.metadata.traceparent,
                   .status = status,
                   .duration = timeline.finished.value_or(timeline.received) - timeline.received,
                   .counts = {{"prompt_tokens", usage.prompt_tokens()},
                              {"completion_tokens", usage.completion_tokens()},
                              {"retries", usage.retries()},
                              {"resumes", usage.resumes()}}});
}

}  // namespace baton::router
