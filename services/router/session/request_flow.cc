#include "services/router/session/request_flow.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/rpc/status_details.h"
#include "common/text/stop_matcher.h"
#include "common/text/tokenizer.h"
#include "services/router/session/request_plan.h"
#include "services/router/session/sequence_output.h"
#include "services/router/session/worker_failure.h"

namespace baton::router {

RequestFlow::RequestFlow(const RequestPlan* plan, const FlowLimits& limits, FlowObserver* observer)
    : plan_(plan), limits_(limits), observer_(observer), output_(plan->request_id) {
  timeline_.received = plan->received;
}

absl::StatusOr<RequestFlow> RequestFlow::Create(const RequestPlan* plan,
                                                const text::Tokenizer* tokenizer,
                                                const FlowLimits& limits,
                                                FlowObserver* observer) {
  BATON_ASSIGN_OR_RETURN(
      const text::StopMatcher matcher,
      text::StopMatcher::Create(plan->output.stop, plan->output.include_stop_str));
  RequestFlow flow(plan, limits, observer);
  for (uint32_t index = 0; index < plan->sampling.n(); ++index) {
    flow.sequences_.emplace_back(tokenizer, plan->output, matcher, index);
  }
  flow.last_token_.resize(flow.sequences_.size());
  return flow;
}

void RequestFlow::OnQueued(absl::Time now) { timeline_.queued = now; }

void RequestFlow::OnPair(bool local_prefill, absl::Time now) {
  if (phase_ != Phase::kQueued) {
    return;
  }
  if (!timeline_.dispatched.has_value()) {
    timeline_.dispatched = now;
  }
  phase_ = Phase::kReserving;
  local_prefill_ = local_prefill;
  decode_open_ = true;
  decode_reading_ = true;  // the call asks for its first message by itself
  Emit(FlowCommand::kOpenDecode);
}

void RequestFlow::OnPrefillWorker(absl::Time /*now*/) {
  if (phase_ != Phase::kAwaitingPrefill) {
    return;
  }
  phase_ = Phase::kPrefilling;
  ++attempt_;
  prefill_open_ = true;
  Emit(FlowCommand::kOpenPrefill);
}

void RequestFlow::OnOutputTaken() { ReadDecodeIfRoom(); }

void RequestFlow::OnDeadline(absl::Time now) {
  if (ended()) {
    return;
  }
  output_.Clear();  // a client that reads too slowly must not delay the end
  End(DeadlineExceeded(phase_name()), now);
}

void RequestFlow::OnClientCancelled(absl::Time now) {
  if (ended()) {
    return;
  }
  output_.Clear();
  End(absl::CancelledError("the client cancelled the request"), now);
}

void RequestFlow::Fail(absl::Status status, absl::Time now) {
  if (!ended()) {
    End(std::move(status), now);
  }
}

void RequestFlow::OnEndpointsGone(absl::Time now) {
  if (ended()) {
    return;
  }
  EndLost(output_begun_ ? rpc::reason::kDecodeLost : rpc::reason::kNoEndpoints,
          "no prefill and decode worker that could hold the request is ready",
          now);
}

std::vector<FlowCommand> RequestFlow::TakeCommands() { return std::exchange(commands_, {}); }

uint32_t RequestFlow::delivered_tokens() const {
  uint32_t tokens = 0;
  for (const SequenceOutput& sequence : sequences_) {
    tokens += sequence.delivered_tokens();
  }
  return tokens;
}

std::string_view RequestFlow::phase_name() const {
  switch (phase_) {
    case Phase::kQueued:
    case Phase::kReserving:
      return "queue";
    case Phase::kAwaitingPrefill:
    case Phase::kPrefilling:
      return output_begun_ ? "transfer" : "prefill";
    case Phase::kDecoding:
    case Phase::kEnded:
      return output_begun_ ? "decode" : "prefill";
  }
  return "decode";
}

// `started` goes out with the first token, not before: gRPC's own retries and ours are only safe
// while the client has received nothing (serving.md 7.4).
void RequestFlow::BeginOutput(absl::Time now) {
  if (output_begun_) {
    return;
  }
  output_begun_ = true;
  served_policy_ = reservation_.layout().policy();
  inference::v1::Started started;
  started.set_request_id(plan_->request_id);
  started.set_model(plan_->model);
  started.set_prompt_tokens(plan_->prompt_tokens);
  started.set_seed(plan_->sampling.seed());
  started.set_kv_policy(served_policy_);
  output_.AddStarted(std::move(started));
  timeline_.first_token = now;
  observer_->OnFirstToken(now - timeline_.received);
}

void RequestFlow::PushTokens(const worker::v1::TokenDelta& tokens, absl::Time now) {
  SequenceOutput& sequence = sequences_[tokens.index()];
  if (sequence.done() || tokens.tokens().empty()) {
    return;
  }
  std::optional<absl::Time>& last = last_token_[tokens.index()];
  if (last.has_value()) {
    observer_->OnTokenGap(now - *last, tokens.tokens_size());
  }
  last = now;
  output_.AddDelta(sequence.Push(tokens));
  if (sequence.done()) {
    output_.AddFinished(sequence.finished());
  }
}

void RequestFlow::FinishSequence(const worker::v1::SequenceFinished& finished) {
  SequenceOutput& sequence = sequences_[finished.index()];
  if (sequence.done()) {
    return;
  }
  output_.AddDelta(sequence.Finish(finished));
  output_.AddFinished(sequence.finished());
}

bool RequestFlow::AllSequencesDone() const {
  return std::ranges::all_of(sequences_, &SequenceOutput::done);
}

// The request ends when every sequence has: at once if a stop string cut one (the workers would go
// on), else with decode's accounting and after the hand-off's end has been heard of.
void RequestFlow::CompleteIfDone(absl::Time now) {
  if (ended() || !AllSequencesDone()) {
    return;
  }
  const bool cut = std::ranges::any_of(sequences_, &SequenceOutput::cut);
  const bool workers_done = decode_usage_.has_value() && !decode_open_ && !prefill_open_;
  if (!cut && !workers_done) {
    return;
  }
  Complete(now);
}

void RequestFlow::Complete(absl::Time now) {
  FillUsage(now);
  output_.AddUsage(usage_);
  End(absl::OkStatus(), now);
}

void RequestFlow::End(absl::Status status, absl::Time now) {
  if (waits_for_worker()) {
    Emit(FlowCommand::kLeaveQueue);
  }
  if (prefill_open_) {
    prefill_open_ = false;
    Emit(FlowCommand::kCancelPrefill);
  }
  if (decode_open_) {
    decode_open_ = false;
    Emit(FlowCommand::kCancelDecode);
  }
  if (lease_running_) {
    lease_running_ = false;
    Emit(FlowCommand::kStopLease);
  }
  held_event_.reset();
  if (std::exchange(resuming_, false)) {
    observer_->OnResume(/*resumed=*/false, from_retained_kv_);
  }
  if (!status.ok()) {
    FillUsage(now);
  }
  timeline_.finished = now;
  final_status_ = std::move(status);
  phase_ = Phase::kEnded;
  Emit(FlowCommand::kNotifyClient);
}

void RequestFlow::EndLost(std::string_view reason, const std::string& message, absl::Time now) {
  if (!output_begun_) {
    End(rpc::Unavailable(reason, message, kRetryDelay), now);
    return;
  }
  const std::string delivered = absl::StrCat(delivered_tokens());
  End(rpc::WithReason(absl::AbortedError(absl::StrCat(message, ", after ", delivered, " tokens")),
                      reason,
                      {{"tokens_delivered", delivered}}),
      now);
}

}  // namespace baton::router
