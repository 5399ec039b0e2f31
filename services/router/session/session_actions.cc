// What a session does for each command of its flow.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/time/clock.h"

#include "common/scheduling/pair_choice.h"
#include "services/router/session/decode_call.h"
#include "services/router/session/lease_keeper.h"
#include "services/router/session/prefill_call.h"
#include "services/router/session/release_kv.h"
#include "services/router/session/request_flow.h"
#include "services/router/session/request_plan.h"
#include "services/router/session/request_span.h"
#include "services/router/session/session.h"
#include "services/router/workers/worker.h"

namespace baton::router {
namespace {

// A timer due at once, again and again, would keep its thread busy.
constexpr absl::Duration kMinEndpointWait = absl::Milliseconds(100);

// What a waiting request holds: its prompt, and its stop strings once as given and once compiled.
int64_t MemoryBytes(const RequestPlan& plan) {
  size_t bytes = plan.prompt_token_ids->size();
  for (const std::string& stop : plan.output.stop) {
    bytes += 4 * stop.size();
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

void Session::Push(Action action) { actions_.push_back(std::move(action)); }

void Session::AddAction(FlowCommand command) {
  switch (command) {
    case FlowCommand::kOpenDecode:
      AddOpenDecode();
      return;
    case FlowCommand::kReadDecode:
      Push([this] { decode_call_->Read(); });
      return;
    case FlowCommand::kCancelDecode:
      AddCancelDecode();
      return;
    case FlowCommand::kOpenPrefill:
      AddOpenPrefill();
      return;
    case FlowCommand::kCancelPrefill:
      AddCancelPrefill();
      return;
    case FlowCommand::kLeavePrefill:
      AddLeavePrefill();
      return;
    case FlowCommand::kStartLease:
      AddStartLease();
      return;
    case FlowCommand::kStopLease:
      Push([this] { std::exchange(lease_, nullptr)->Stop(); });
      return;
    case FlowCommand::kRequeue:
      prefill_ticket_ = WorkerTicket();  // a request that waits takes no slot
      Push([this, request = MakeAdmissionRequest()] { services_.admission->Requeue(request); });
      AddEndpointWait();
      return;
    case FlowCommand::kWaitForPrefill:
      Push([this, request = MakeAdmissionRequest()] {
        services_.admission->WaitForPrefill(request);
      });
      AddEndpointWait();
      return;
    case FlowCommand::kLeaveQueue:
      Push([this] { services_.admission->Leave(id_); });
      return;
    case FlowCommand::kNotifyClient:
      Push([this] {
        if (client_ != nullptr) {
          client_->OnOutput();
        }
      });
      return;
  }
}

AdmissionRequest Session::MakeAdmissionRequest() {
  return {.id = id_, .client = weak_from_this(), .needs = MakeNeeds(), .bytes = MemoryBytes(plan_)};
}

scheduling::PairNeeds Session::MakeNeeds() {
  std::optional<uint64_t> prefer_prefill;
  if (retained_at_ != nullptr && avoid_prefill_ != retained_at_->id()) {
    prefer_prefill = retained_at_->id();
  }
  return {.prompt_tokens = plan_.prompt_tokens,
          .total_tokens = plan_.total_tokens(),
          .dense = plan_.dense_kv,
          .prefer_decode = services_.homes->Find(plan_.session_id),
          .prefer_prefill = prefer_prefill,
          .avoid_prefill = avoid_prefill_,
          .avoid_decode = avoid_decode_};
}

void Session::AddOpenDecode() {
  worker::v1::DecodeRequest request;
  request.set_request_id(plan_.request_id);
  request.set_prompt_tokens(plan_.prompt_tokens);
  *request.mutable_sampling() = plan_.sampling;
  request.set_kv_policy(flow_->kv_policy());
  for (const std::span<const int32_t> tokens : flow_->delivered()) {
    request.add_delivered()->set_token_ids(tokens.data(), tokens.size_bytes());
  }
  request.set_session_id(plan_.session_id);
  if (flow_->local_prefill() || !plan_.session_id.empty()) {
    request.set_prompt_token_ids(*plan_.prompt_token_ids);
  }
  decode_number_ = ++last_call_;
  Push([this,
        worker = decode_ticket_.worker(),
        request = std::move(request),
        number = decode_number_,
        chosen = absl::Now()] {
    services_.metrics->ObserveRoute(absl::Now() - chosen);
    decode_call_ = DecodeCall::Start(
        worker, request, plan_.metadata, plan_.deadline, number, shared_from_this());
  });
}

void Session::AddOpenPrefill() {
  worker::v1::PrefillRequest request;
  request.set_request_id(plan_.request_id);
  request.set_prompt_token_ids(*plan_.prompt_token_ids);
  *request.mutable_sampling() = plan_.sampling;
  // Decode has decided what the policy comes to; prefill does that or refuses.
  request.set_kv_policy(flow_->reservation().layout().policy());
  *request.mutable_reservation() = flow_->reservation();
  request.set_attempt(flow_->attempt());
  if (retained_at_ != prefill_ticket_.worker()) {
    SetRetainedAt(*flow_, nullptr);
  }
  request.set_use_retained_kv(retained_at_ != nullptr);
  prefill_number_ = ++last_call_;
  Push([this,
        worker = prefill_ticket_.worker(),
        request = std::move(request),
        number = prefill_number_] {
    prefill_call_ = PrefillCall::Start(
        worker, request, plan_.metadata, plan_.deadline, number, shared_from_this());
  });
}

void Session::AddCancelDecode() {
  decode_number_ = 0;
  // The ticket goes back with the lambda, after the call has been cancelled.
  auto ticket = std::make_shared<WorkerTicket>(std::move(decode_ticket_));
  decode_ticket_ = WorkerTicket();
  Push([this, ticket] {
    if (const auto call = std::exchange(decode_call_, nullptr)) {
      call->Cancel();
    }
  });
}

void Session::AddCancelPrefill() {
  prefill_number_ = 0;
  auto ticket = std::make_shared<WorkerTicket>(std::move(prefill_ticket_));
  prefill_ticket_ = WorkerTicket();
  Push([this, ticket] {
    if (const auto call = std::exchange(prefill_call_, nullptr)) {
      call->Cancel();
    }
  });
}

void Session::AddLeavePrefill() {
  prefill_number_ = 0;
  auto ticket = std::make_shared<WorkerTicket>(std::move(prefill_ticket_));
  prefill_ticket_ = WorkerTicket();
  Push([this, ticket] { left_prefill_calls_.push_back(std::exchange(prefill_call_, nullptr)); });
}

void Session::SetRetainedAt(RequestFlow& flow, std::shared_ptr<Worker> worker) {
  flow.OnKvRetained(worker != nullptr);
  if (worker == retained_at_) {
    return;
  }
  if (const auto before = std::exchange(retained_at_, std::move(worker)); before != nullptr) {
    Push([this, before] {
      for (const auto& call : std::exchange(left_prefill_calls_, {})) {
        call->Cancel();
      }
      ReleaseKv(before, plan_.request_id);
    });
  }
}

void Session::AddStartLease() {
  Push([this, worker = decode_ticket_.worker(), reservation = flow_->reservation()] {
    lease_ = LeaseKeeper::Start(worker, reservation, services_.timers);
  });
}

void Session::AddEndpointWait() {
  const uint64_t wait = ++wait_number_;
  Push([this, wait] {
    services_.timers->After(std::max(services_.endpoint_wait, kMinEndpointWait),
                            [weak = weak_from_this(), wait] {
                              if (const auto session = weak.lock()) {
                                session->OnEndpointWait(wait);
                              }
                            });
  });
}

void Session::AddEndActions() {
  claim_.Release();
  services_.metrics->ObserveEnd(flow_->final_status(), flow_->timeline(), flow_->usage());
  Push(
      [this, status = flow_->final_status(), timeline = flow_->timeline(), usage = flow_->usage()] {
        LogEnd(status, timeline, usage);
        EndSpan(plan_, status, timeline, usage);
      });
  AddCancelPrefill();
  AddCancelDecode();
  SetRetainedAt(*flow_, nullptr);
  Push([this, timer = deadline_timer_] {
    services_.timers->Cancel(timer);
    client_.reset();
    services_.admission->Dispatch();  // the tickets are back
  });
}

}  // namespace baton::router
