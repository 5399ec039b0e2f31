// The decode side of a request: reservation, tokens, refusal and loss.
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/rpc/status_details.h"
#include "services/router/session/request_flow.h"
#include "services/router/session/sequence_output.h"
#include "services/router/session/worker_failure.h"

namespace baton::router {
namespace {

bool IndexInRange(const worker::v1::DecodeEvent& event, size_t sequences) {
  switch (event.event_case()) {
    case worker::v1::DecodeEvent::kTokens:
      return event.tokens().index() < sequences;
    case worker::v1::DecodeEvent::kFinished:
      return event.finished().index() < sequences;
    default:
      return true;
  }
}

}  // namespace

void RequestFlow::ReadDecodeIfRoom() {
  if (ended() || !decode_open_ || decode_reading_ || held_event_.has_value()) {
    return;
  }
  // Resuming at half full avoids one tiny read per message that a slow client takes.
  const size_t limit = limits_.max_stream_buffer_bytes;
  decode_paused_ = output_.bytes() >= (decode_paused_ ? limit / 2 + 1 : limit);
  if (decode_paused_) {
    return;
  }
  decode_reading_ = true;
  Emit(FlowCommand::kReadDecode);
}

void RequestFlow::OnDecodeEvent(worker::v1::DecodeEvent event, absl::Time now) {
  decode_reading_ = false;
  if (ended() || !decode_open_) {
    return;
  }
  if (event.has_reserved()) {
    OnReserved(std::move(*event.mutable_reserved()), now);
    return;
  }
  if (phase_ == Phase::kReserving || !IndexInRange(event, sequences_.size())) {
    Fail(absl::InternalError("the decode worker broke the protocol of Decode.Generate"), now);
    return;
  }
  if (AwaitsFirstTokens()) {
    held_event_ = std::move(event);  // prefill's first tokens are still on their way
    return;
  }
  HandleDecodeEvent(event, now);
  CompleteIfDone(now);
  ReadDecodeIfRoom();
}

void RequestFlow::OnReserved(worker::v1::Reserved reserved, absl::Time now) {
  // Decode may have kept the KV of the conversation's turn before.
  const bool goes_on = reserved.local_prefill() && !plan_->session_id.empty();
  if (phase_ != Phase::kReserving || (reserved.local_prefill() != local_prefill_ && !goes_on)) {
    Fail(rpc::WithReason(
             absl::FailedPreconditionError(
                 "the decode worker answered with a reservation of another role than asked for"),
             rpc::reason::kWrongRole),
         now);
    return;
  }
  reservation_ = std::move(reserved);
  if (!output_begun_) {
    timeline_.reserved = now;
  }
  if (goes_on && !local_prefill_) {
    local_prefill_ = true;
    Emit(FlowCommand::kCancelPrefill);  // the pair's prefill worker is not needed
  }
  if (local_prefill_) {
    phase_ = Phase::kDecoding;
  } else {
    phase_ = Phase::kPrefilling;
    attempt_ = 1;
    lease_running_ = true;
    prefill_open_ = true;
    Emit(FlowCommand::kStartLease);
    Emit(FlowCommand::kOpenPrefill);
  }
  ReadDecodeIfRoom();
}

void RequestFlow::HandleDecodeEvent(const worker::v1::DecodeEvent& event, absl::Time now) {
  AssumeCommitted(now);
  switch (event.event_case()) {
    case worker::v1::DecodeEvent::kTokens:
      BeginOutput(now);
      PushTokens(event.tokens(), now);
      break;
    case worker::v1::DecodeEvent::kFinished:
      BeginOutput(now);
      FinishSequence(event.finished());
      break;
    case worker::v1::DecodeEvent::kUsage:
      decode_usage_ = event.usage();
      break;
    default:
      return;  // a later version's event
  }
  Emit(FlowCommand::kNotifyClient);
}

// Decode only speaks after a commit: an attempt that still runs or waits is not needed.
void RequestFlow::AssumeCommitted(absl::Time now) {
  if (handed_off_) {
    return;
  }
  handed_off_ = true;
  if (std::exchange(resuming_, false)) {
    observer_->OnResume(/*resumed=*/true, from_retained_kv_);
  }
  if (!timeline_.committed.has_value() && !local_prefill_) {
    timeline_.committed = now;
  }
  if (phase_ == Phase::kAwaitingPrefill) {
    Emit(FlowCommand::kLeaveQueue);
  }
  if (lease_running_) {
    lease_running_ = false;
    Emit(FlowCommand::kStopLease);
  }
  phase_ = Phase::kDecoding;
}

void RequestFlow::OnDecodeEnd(const absl::Status& status, absl::Time now) {
  if (ended() || !decode_open_) {
    return;
  }
  decode_open_ = false;
  decode_reading_ = false;
  if (status.ok() && decode_usage_.has_value() && AllSequencesDone()) {
    CompleteIfDone(now);
    return;
  }
  switch (ClassifyDecodeFailure(status, phase_ == Phase::kReserving)) {
    case WorkerFailure::kBusy:
      observer_->OnRetry(RetryReason::kDecodeRefused);
      StartOver();
      return;
    case WorkerFailure::kLost:
      DecodeLost(status, now);
      return;
    case WorkerFailure::kDeadline:
      OnDeadline(now);
      return;
    case WorkerFailure::kFinal:
      if (resuming_) {
        EndLost(rpc::reason::kDecodeLost,
                absl::StrCat("no other worker can go on: ", status.message()),
                now);
        return;
      }
      Fail(status, now);
      return;
  }
}

// Another pair is tried: it makes the answer, or goes on with it where the client has its begin.
void RequestFlow::DecodeLost(const absl::Status& status, absl::Time now) {
  if (AllSequencesDone()) {  // only its accounting is lost
    Complete(now);
    return;
  }
  const std::string cause =
      status.ok() ? "its stream ended without the terminal message" : std::string(status.message());
  if (++failures_ >= limits_.max_attempts) {
    EndLost(rpc::reason::kDecodeLost,
            absl::StrCat("decode failed ", failures_, " times: ", cause),
            now);
    return;
  }
  observer_->OnRetry(RetryReason::kDecodeLost);
  ++retries_;
  StartOver();
}

// Forgets the pair and asks for another one.
void RequestFlow::StartOver() {
  if (output_begun_ && !std::exchange(resuming_, true)) {
    ++resumes_;
  }
  if (phase_ == Phase::kAwaitingPrefill) {
    Emit(FlowCommand::kLeaveQueue);
  }
  if (prefill_open_) {
    prefill_open_ = false;
    Emit(kv_retained_ ? FlowCommand::kLeavePrefill : FlowCommand::kCancelPrefill);
  }
  from_retained_kv_ = false;
  // Also when the decode call has ended: its worker is given back with it.
  decode_open_ = false;
  decode_reading_ = false;
  Emit(FlowCommand::kCancelDecode);
  if (lease_running_) {
    lease_running_ = false;
    Emit(FlowCommand::kStopLease);
  }
  held_event_.reset();
  reservation_.Clear();
  attempt_ = 0;
  handed_off_ = false;
  first_tokens_seen_ = false;
  committed_.reset();
  decode_usage_.reset();
  if (!output_begun_) {
    timeline_.committed.reset();
  }
  phase_ = Phase::kQueued;
  Emit(FlowCommand::kRequeue);
}

const std::string& RequestFlow::kv_policy() const {
  return output_begun_ ? served_policy_ : plan_->kv_policy;
}

std::vector<std::span<const int32_t>> RequestFlow::delivered() const {
  std::vector<std::span<const int32_t>> delivered;
  if (output_begun_) {
    for (const SequenceOutput& sequence : sequences_) {
      delivered.emplace_back(sequence.delivered());
    }
  }
  return delivered;
}

}  // namespace baton::router
