// The prefill side of a request: first tokens, commit, and the next attempt after a loss.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/rpc/status_details.h"
#include "services/router/session/request_flow.h"
#include "services/router/session/sequence_output.h"
#include "services/router/session/worker_failure.h"

namespace baton::router {

void RequestFlow::OnPrefillEvent(const worker::v1::PrefillEvent& event, absl::Time now) {
  if (ended() || !prefill_open_) {
    return;
  }
  switch (event.event_case()) {
    case worker::v1::PrefillEvent::kFirstTokens:
      OnFirstTokens(event.first_tokens(), now);
      break;
    case worker::v1::PrefillEvent::kCommitted:
      OnCommitted(event.committed(), now);
      break;
    case worker::v1::PrefillEvent::kAccepted:
      from_retained_kv_ = event.accepted().from_retained_kv();
      break;
    default:
      break;  // progress only shows life
  }
}

// One entry per sequence, or what is wrong with the message.
absl::StatusOr<std::vector<RequestFlow::FirstToken>> RequestFlow::ReadFirstTokens(
    const worker::v1::FirstTokens& first) const {
  std::vector<FirstToken> tokens(sequences_.size());
  for (const worker::v1::TokenDelta& delta : first.tokens()) {
    if (delta.index() >= tokens.size() || delta.tokens_size() > 1) {
      return absl::InternalError("the prefill worker sent malformed first tokens");
    }
    if (delta.tokens_size() == 1) {
      tokens[delta.index()].token_id = delta.tokens(0).id();
    }
  }
  for (const worker::v1::SequenceFinished& finished : first.finished()) {
    if (finished.index() >= tokens.size()) {
      return absl::InternalError("the prefill worker finished a sequence that was not asked for");
    }
    FirstToken& token = tokens[finished.index()];
    token.finished = true;
    if (finished.has_stop_token_id()) {
      token.stop_token_id = finished.stop_token_id();
    }
  }
  for (const FirstToken& token : tokens) {
    if (!token.token_id.has_value() && !token.finished) {
      return absl::InternalError("the prefill worker sent no first token for a sequence");
    }
  }
  return tokens;
}

bool RequestFlow::AwaitsFirstTokens() const {
  return !local_prefill_ && !first_tokens_seen_ &&
         std::ranges::any_of(sequences_, [](const SequenceOutput& sequence) {
           return sequence.delivered_tokens() == 0 && !sequence.done();
         });
}

bool RequestFlow::BeginsAlike(const SequenceOutput& sequence, const FirstToken& token) {
  if (sequence.delivered_tokens() > 0) {
    return token.token_id == static_cast<uint32_t>(sequence.delivered().front());
  }
  // Not begun, or ended by a stop token that was its first one.
  return !sequence.done() || (token.stop_token_id.has_value() &&
                              token.stop_token_id == sequence.finished().stop_token_id());
}

bool RequestFlow::CanGoOn(const SequenceOutput& sequence, const FirstToken& token) {
  return sequence.done() || !token.finished;
}

bool RequestFlow::All(bool (*holds)(const SequenceOutput&, const FirstToken&),
                      const std::vector<FirstToken>& tokens) const {
  return std::ranges::equal(sequences_, tokens, holds);
}

// Decode that continues an answer takes the tokens that the client has in place of prefill's. A
// reservation from before the client had any is given up for one that does.
void RequestFlow::OnOtherFirstTokens(const std::vector<FirstToken>& tokens, absl::Time now) {
  if (resuming_ || !All(CanGoOn, tokens) || ++failures_ >= limits_.max_attempts) {
    EndLost(rpc::reason::kPrefillLost, "a repeated prefill gave another first token", now);
    return;
  }
  observer_->OnRetry(RetryReason::kPrefillLost);
  ++retries_;
  StartOver();
}

void RequestFlow::OnFirstTokens(const worker::v1::FirstTokens& first, absl::Time now) {
  absl::StatusOr<std::vector<FirstToken>> tokens = ReadFirstTokens(first);
  if (!tokens.ok()) {
    Fail(tokens.status(), now);
    return;
  }
  if (!All(BeginsAlike, *tokens) && !(resuming_ && All(CanGoOn, *tokens))) {
    OnOtherFirstTokens(*tokens, now);
    return;
  }
  first_tokens_seen_ = true;
  BeginOutput(now);
  for (const worker::v1::TokenDelta& delta : first.tokens()) {
    if (sequences_[delta.index()].delivered_tokens() == 0) {  // else the client has it already
      PushTokens(delta, now);
    }
  }
  for (const worker::v1::SequenceFinished& finished : first.finished()) {
    FinishSequence(finished);
  }
  Emit(FlowCommand::kNotifyClient);
  if (held_event_.has_value()) {
    const worker::v1::DecodeEvent event = *std::exchange(held_event_, std::nullopt);
    HandleDecodeEvent(event, now);
  }
  CompleteIfDone(now);
  ReadDecodeIfRoom();
}

void RequestFlow::OnCommitted(const worker::v1::PrefillCommitted& committed, absl::Time now) {
  if (!first_tokens_seen_) {
    Fail(absl::InternalError("the prefill worker committed without first tokens"), now);
    return;
  }
  committed_ = committed;
  timeline_.committed = timeline_.committed.value_or(now);
  AssumeCommitted(now);
  CompleteIfDone(now);
}

void RequestFlow::OnPrefillEnd(const absl::Status& status, absl::Time now) {
  if (ended() || !prefill_open_) {
    return;
  }
  prefill_open_ = false;
  if (committed_.has_value() || handed_off_) {
    CompleteIfDone(now);
    return;
  }
  switch (ClassifyPrefillFailure(status)) {
    case WorkerFailure::kBusy:
      WaitForPrefill(RetryReason::kPrefillBusy);
      return;
    case WorkerFailure::kLost:
      PrefillLost(status, now);
      return;
    case WorkerFailure::kDeadline:
      OnDeadline(now);
      return;
    case WorkerFailure::kFinal:
      Fail(status, now);
      return;
  }
}

void RequestFlow::PrefillLost(const absl::Status& status, absl::Time now) {
  // A repeated attempt whose reservation has ended although the first tokens are known: an attempt
  // before was committed and its worker died before it could say so. Decode's stream tells the
  // rest.
  if (absl::IsFailedPrecondition(status) && rpc::ReasonOf(status) == rpc::reason::kStaleEpoch &&
      attempt_ > 1 && first_tokens_seen_) {
    AssumeCommitted(now);
    CompleteIfDone(now);
    return;
  }
  const bool second_data_loss = absl::IsDataLoss(status) && std::exchange(data_loss_seen_, true);
  if (++failures_ >= limits_.max_attempts) {
    if (absl::IsDataLoss(status) || absl::IsFailedPrecondition(status)) {
      End(status, now);
      return;
    }
    const std::string cause =
        status.ok() ? "its stream ended without the commit" : std::string(status.message());
    EndLost(rpc::reason::kPrefillLost,
            absl::StrCat("prefill failed ", failures_, " times: ", cause),
            now);
    return;
  }
  ++retries_;
  // Decode was lost to prefill, which still has the KV: another decode worker can take it.
  if (kv_retained_ && LostAtDecode(status)) {
    observer_->OnRetry(RetryReason::kDecodeLost);
    StartOver();
    return;
  }
  // Committed, but the first tokens died with the worker: this reservation can't be used. Or sent
  // twice and damaged twice: other memory and another prefill.
  if (held_event_.has_value() || second_data_loss) {
    observer_->OnRetry(RetryReason::kPrefillLost);
    StartOver();
    return;
  }
  WaitForPrefill(RetryReason::kPrefillLost);
}

void RequestFlow::WaitForPrefill(RetryReason reason) {
  observer_->OnRetry(reason);
  phase_ = Phase::kAwaitingPrefill;
  // First give the lost worker back, then ask for another one.
  Emit(FlowCommand::kCancelPrefill);
  Emit(FlowCommand::kWaitForPrefill);
}

void RequestFlow::OnPrefillWaitExpired(bool other_pair, absl::Time now) {
  if (phase_ != Phase::kAwaitingPrefill) {
    return;
  }
  if (other_pair) {
    StartOver();
    return;
  }
  EndLost(rpc::reason::kPrefillLost, "the prefill worker was lost and no other one came", now);
}

}  // namespace baton::router
