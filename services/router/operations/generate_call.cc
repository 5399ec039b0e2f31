#include "services/router/operations/generate_call.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/rpc/request_log.h"
#include "common/rpc/request_metadata.h"
#include "common/rpc/status_details.h"
#include "services/router/operations/wire_message.h"
#include "services/router/router_core.h"
#include "services/router/session/request_plan.h"
#include "services/router/session/request_span.h"
#include "services/router/session/session.h"
#include "services/router/session/timeline.h"
#include "services/router/session/worker_failure.h"
#include "services/router/validate/check_request.h"
#include "services/router/validate/prepare_request.h"

namespace baton::router {
namespace {

// The router gives up this much before the client does, so that its status still arrives.
constexpr absl::Duration kMaxDeadlineMargin = absl::Milliseconds(100);
constexpr int kMarginFraction = 20;

std::string RandomRequestId() {
  std::random_device device;
  const auto word = [&] { return (uint64_t{device()} << 32) | device(); };
  const uint64_t high = word();
  return absl::StrFormat("%016x%016x", high, word());
}

absl::Time WithMargin(absl::Time deadline, absl::Time now) {
  if (deadline == absl::InfiniteFuture()) {
    return deadline;
  }
  return deadline -
         std::clamp((deadline - now) / kMarginFraction, absl::ZeroDuration(), kMaxDeadlineMargin);
}

}  // namespace

GenerateCall::GenerateCall(RouterCore* core, grpc::CallbackServerContext* context)
    : core_(core), counted_(&core->calls), context_(context), received_(absl::Now()) {}

absl::Status GenerateCall::CheckAccepting() const {
  if (core_->draining.load()) {
    return rpc::Unavailable(rpc::reason::kDraining, "the router is shutting down", kRetryDelay);
  }
  return absl::OkStatus();
}

void GenerateCall::SetRequestId(const std::string& asked) {
  request_id_ = !asked.empty()                  ? asked
                : !metadata_.request_id.empty() ? metadata_.request_id
                                                : RandomRequestId();
  // An id that can't be a header value is refused by PrepareRequest and must not be sent back.
  const bool plain = request_id_.size() <= kMaxRequestIdBytes &&
                     std::ranges::all_of(request_id_, [](char c) { return c > ' ' && c <= '~'; });
  if (plain) {
    context_->AddInitialMetadata(rpc::kRequestIdKey, request_id_);
    metadata_.request_id = request_id_;
  }
}

void GenerateCall::Begin(const grpc::ByteBuffer& request) {
  metadata_ = rpc::ReadRequestMetadata(*context_);
  span_ = trace::CallSpan(core_->spans.get(), metadata_.traceparent, /*may_begin=*/true);
  metadata_.traceparent = span_.traceparent();
  absl::Status status = CheckAccepting();
  if (status.ok()) {
    bytes_ = request;
    if (core_->prompt_pool->TrySubmit([self = shared_from_this()] { self->Prepare(); })) {
      return;
    }
    status = rpc::ResourceExhausted(
        rpc::reason::kQueueFull, "too many prompts wait to be tokenized", kRetryDelay);
  }
  EndWithoutSession(status);
}

absl::StatusOr<std::shared_ptr<Session>> GenerateCall::MakeSession() {
  inference::v1::GenerateRequest request;
  const absl::Status parsed = ParseRequest(bytes_, &request);
  bytes_.Clear();  // the plan has what is needed of it
  SetRequestId(request.request_id());
  BATON_RETURN_IF_ERROR(parsed);
  BATON_ASSIGN_OR_RETURN(RequestPlan plan,
                         PrepareRequest(*core_->model,
                                        {.default_max_tokens = core_->default_max_tokens,
                                         .worker_limits = core_->workers->limits()},
                                        request,
                                        received_));
  plan.request_id = request_id_;
  plan.received = received_;
  plan.deadline = WithMargin(rpc::DeadlineOf(*context_), received_);
  plan.metadata = metadata_;
  plan.span = span_;
  BATON_ASSIGN_OR_RETURN(RunningRequests::Claim claim, core_->running.Add(request_id_));
  return Session::Create(
      core_->session_services, std::move(plan), std::move(claim), shared_from_this());
}

void GenerateCall::Prepare() {
  if (context_->IsCancelled()) {  // it waited too long for the pool
    EndWithoutSession(absl::Now() >= rpc::DeadlineOf(*context_)
                          ? DeadlineExceeded("queue")
                          : absl::CancelledError("the client cancelled the request"));
    return;
  }
  absl::StatusOr<std::shared_ptr<Session>> session = MakeSession();
  if (!session.ok()) {
    EndWithoutSession(session.status());
    return;
  }
  bool gone = false;
  {
    absl::MutexLock lock(&mutex_);
    session_ = *session;
    gone = client_gone_;
  }
  if (gone) {
    (*session)->Cancel();
  } else {
    (*session)->Start();
  }
  Pump();
}

void GenerateCall::EndWithoutSession(const absl::Status& status) {
  if (request_id_.empty()) {
    SetRequestId({});  // it was not read
  }
  Timeline timeline;
  timeline.received = received_;
  timeline.finished = absl::Now();
  core_->metrics->ObserveEnd(status, timeline, {});
  rpc::LogRequest({.rpc = "Inference.Generate",
                   .request_id = metadata_.request_id,
                   .traceparent = metadata_.traceparent,
                   .status = status,
                   .duration = *timeline.finished - received_,
                   .counts = {}});
  span_.End(kGenerateRpc,
            received_,
            *timeline.finished,
            status,
            {{"baton.request_id", metadata_.request_id}});
  End(status);
}

void GenerateCall::OnOutput() { Pump(); }

void GenerateCall::DeliveryDone(bool ok) {
  if (!ok) {
    ClientGone();
  }
  {
    absl::MutexLock lock(&mutex_);
    pumping_ = false;
  }
  Pump();
}

void GenerateCall::ClientGone() {
  std::shared_ptr<Session> session;
  {
    absl::MutexLock lock(&mutex_);
    client_gone_ = true;
    session = session_;
  }
  if (session != nullptr) {
    session->Cancel();
  }
}

void GenerateCall::Refuse(const absl::Status& status) {
  std::shared_ptr<Session> session;
  {
    absl::MutexLock lock(&mutex_);
    session = session_;
  }
  session->Fail(status);
}

void GenerateCall::Pump() {
  std::shared_ptr<Session> session;
  {
    absl::MutexLock lock(&mutex_);
    if (pumping_ || session_ == nullptr) {
      pump_again_ = true;
      return;
    }
    pumping_ = true;
    pump_again_ = false;
    session = session_;
  }
  while (true) {
    inference::v1::GenerateStreamResponse message;
    absl::Status status;
    switch (session->Take(&message, &status)) {
      case Session::Taken::kMessage:
        if (Deliver(std::move(message))) {
          return;  // DeliveryDone goes on
        }
        break;
      case Session::Taken::kEnd:
        End(status);
        return;  // pumping_ stays: nothing may follow
      case Session::Taken::kNothing: {
        absl::MutexLock lock(&mutex_);
        if (!std::exchange(pump_again_, false)) {
          pumping_ = false;
          return;
        }
        break;
      }
    }
  }
}

}  // namespace baton::router
