#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/base/status_context.h"
#include "common/engine/operations/operations.h"
#include "common/engine/sequence.h"

namespace baton::engine {
namespace {

void RecordDecodeStep(const Step& step, ActiveRequest& request) {
  if (std::exchange(request.has_decoded, true)) {
    return;
  }
  request.stats.decode_queue_time = step.started - request.decode_started;
  request.stats.first_decode_step_time = step.finished - step.started;
}

void RetireDecodeRow(EngineState& state,
                     const Step& step,
                     const StepSequence& rows,
                     const SampleJob& job) {
  ActiveRequest& request = *rows.request;
  Sequence& sequence = *rows.sequence;
  RecordDecodeStep(step, request);
  if (!job.output.ok()) {
    EndRequest(state, request, WithContext(job.output.status(), "sampling"));
    return;
  }
  TakeToken(state, request, sequence, *job.output, /*deliver=*/true);
  if (sequence.finished) {
    std::erase_if(state.decoding,
                  [&](const DecodingSequence& entry) { return entry.sequence == &sequence; });
  }
  if (request.AllSequencesFinished()) {
    EndRequest(state, request, absl::OkStatus());
  }
}

void CompletePrompt(EngineState& state,
                    ActiveRequest& request,
                    absl::Time now,
                    std::span<const SampleJob> jobs) {
  std::vector<TokenOutput> first_tokens;
  for (const SampleJob& job : jobs) {
    if (!job.output.ok()) {
      EndRequest(state, request, WithContext(job.output.status(), "sampling the first token"));
      return;
    }
    first_tokens.push_back(*job.output);
  }
  std::erase(state.prefilling, &request);
  if (!request.first_tokens_delivered) {
    request.first_token_time = now;
  }
  request.stats.prefill_time = request.first_token_time - request.prefill_started;
  request.stats.compress_time = request.sequences.front().encode_time;
  if (state.parts.options.role == Role::kPrefill) {
    HandOff(state, request, first_tokens);
  } else {
    StartDecoding(state, request, first_tokens, /*deliver=*/!request.first_tokens_delivered);
  }
}

void RetireChunk(EngineState& state,
                 const StepSequence& rows,
                 absl::Time now,
                 std::span<const SampleJob> jobs) {
  ActiveRequest& request = *rows.request;
  if (!request.first_tokens_delivered) {
    DeliverProgress(state, request, rows.sequence->computed_tokens);
  }
  if (rows.completes_prompt) {
    CompletePrompt(state, request, now, jobs);
  }
}

void RetireRows(EngineState& state, const Step& step) {
  std::span<const SampleJob> jobs = step.samples;
  for (const StepSequence& rows : step.sequences) {
    // Draws lie in the order of the rows that they belong to.
    const size_t draws = !rows.prefill           ? 1
                         : rows.completes_prompt ? static_cast<size_t>(rows.request->sampling.n)
                                                 : 0;
    const std::span<const SampleJob> own = jobs.first(draws);
    jobs = jobs.subspan(draws);
    rows.sequence->computed_tokens += rows.token_count;  // of an ended request too: it may be kept
    if (rows.request->ended()) {
      continue;
    }
    if (rows.prefill) {
      RetireChunk(state, rows, step.finished, own);
    } else {
      RetireDecodeRow(state, step, rows, own.front());
    }
  }
}

void RetireExpansion(EngineState& state, const StepExpansion& expansion) {
  if (expansion.request == nullptr || expansion.request->ended() ||
      expansion.request->accept_attempt != nullptr) {  // of an attempt that is over
    return;
  }
  expansion.request->expanded_tokens += expansion.token_count;
  if (expansion.completes_prompt) {
    FinishExpansion(state, *expansion.request);
  }
}

// Whatever the device reported, the caller sees a fault of ours.
absl::Status AsInternal(const absl::Status& status) {
  return absl::Status(absl::StatusCode::kInternal, status.message());
}

void FailRequests(EngineState& state, const Step& step) {
  for (ActiveRequest* request : step.requests) {
    request->session_id.clear();  // its KV may be half written
    if (!request->ended()) {
      EndRequest(state, *request, AsInternal(step.status));
    }
  }
}

}  // namespace

void RetireStep(EngineState& state, std::unique_ptr<Step> step) {
  state.step_in_flight = false;
  state.steps += 1;
  for (ActiveRequest* request : step->requests) {
    --request->steps_in_flight;
  }
  if (state.parts.observer != nullptr) {
    state.parts.observer->OnStep(
        step->prefill_tokens, step->decode_tokens, step->finished - step->started);
  }
  if (step->status.ok()) {
    RetireExpansion(state, step->expansion);
    RetireRows(state, *step);
  } else {
    FailRequests(state, *step);
  }
  for (ActiveRequest* request : step->requests) {
    AnswerAttempt(*request, absl::OkStatus());
  }
  BeginPendingLandings(state);
}

}  // namespace baton::engine
