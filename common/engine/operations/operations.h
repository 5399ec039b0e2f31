// What the engine thread can do; one file per operation. All run on the engine thread and none
// blocks. Observers are called from here, and listeners by TellListeners.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

// What every operation works with.
// IWYU pragma: begin_exports
#include "common/engine/active_request.h"
#include "common/engine/engine.h"
#include "common/engine/engine_state.h"
#include "common/engine/kept_kv.h"
#include "common/engine/kv_choice.h"
#include "common/engine/request.h"
#include "common/engine/sequence.h"
#include "common/engine/sequence_memory.h"
#include "common/engine/staged_copies.h"
#include "common/engine/step.h"
#include "common/kv/pool/reservation_table.h"
// IWYU pragma: end_exports

namespace baton::engine {

// submit.cc: a checked request joins the end of the waiting queue. `serial` is the gate's.
void QueueRequest(EngineState& state,
                  uint64_t serial,
                  GenerateRequest request,
                  const KvChoice& kv,
                  std::shared_ptr<RequestListener> listener,
                  absl::Time submitted);

// submit.cc: what a repetition penalty has to know of a prompt that is here.
void RecordPromptTokens(const EngineState& state, ActiveRequest& request);

// take_memory.cc: ExtendKept, else AllocateMemory, for which kept KV makes room, oldest first. The
// observer hears of a turn that has its memory, once.
bool TakeMemory(EngineState& state, const MemoryUse& use, ActiveRequest& request);

// take_memory.cc: whether pages of a device go to the request's sink from where they are.
bool ShipsInPlace(const EngineState& state, const ActiveRequest& request);

// extend.cc: whether the request goes on from KV that was kept for its session. Then it has its
// memory, and prompt tokens from cached_tokens on are to be computed here; else what was kept is
// gone.
bool ExtendKept(EngineState& state, ActiveRequest& request);

// keep.cc: keeps the KV of a releasable request for its session's next turn; false: it has none to
// keep and everything stays as it is. DropKept gives memory back; ExpireKept drops what nobody came
// for in time, DropAllKept everything.
bool KeepKv(EngineState& state, ActiveRequest& request);
void DropKept(EngineState& state, KeptKv kept);
bool DropOldestKept(EngineState& state);
void ExpireKept(EngineState& state);
void DropAllKept(EngineState& state);

// admit.cc: waiting requests start prefill, in order, while pages and running slots last. The first
// one that does not fit holds back the rest, so that a large prompt is never overtaken for ever;
// one that can never be staged ends.
void AdmitWaiting(EngineState& state);

// reserve.cc: allocates every page that the request may ever need, or refuses; see Engine::Reserve.
void ReservePages(EngineState& state,
                  uint64_t serial,
                  ReserveRequest request,
                  const KvChoice& kv,
                  std::shared_ptr<RequestListener> listener,
                  const Engine::ReserveCallback& granted);

// begin_attempt.cc: see Engine. AnswerAttempt gives an attempt that waits for its answer one.
void BeginAttempt(EngineState& state,
                  const kv::ReservationKey& key,
                  uint32_t attempt,
                  Engine::StatusCallback done);
void AnswerAttempt(ActiveRequest& request, const absl::Status& status);

// renew_lease.cc: see Engine.
absl::Status RenewLease(EngineState& state, const kv::ReservationKey& key);

// land_pages.cc: see Engine::PagesLanded. Pages that follow those that were moved before are moved;
// others are when the prompt is committed.
void LandPages(EngineState& state,
               const kv::ReservationKey& key,
               uint32_t attempt,
               const LandedPages& pages);

// land_hidden.cc: see Engine::HiddenLanded.
void LandHidden(EngineState& state, const kv::ReservationKey& key, uint32_t attempt, int32_t pages);

// land.cc: a committed prompt, whose first tokens the request has, and that is staged, `sent` pages
// of each shipped layer, is moved to its pages beside steps, what LandPages has left of it: from
// now on, or once the step in flight, which may be at work on these pages, is retired
// (BeginPendingLandings). FinishLanding when it is there, at once where nothing is staged and steps
// may be expanding it already: its sequences start to decode or, first, its hidden states are
// expanded.
void StartLanding(EngineState& state, ActiveRequest& request, std::span<const int32_t> sent);
void BeginPendingLandings(EngineState& state);
void FinishLanding(EngineState& state, ActiveRequest& request);
// The request of an open reservation whose newest attempt, which has been accepted, this is; null:
// there is none.
ActiveRequest* FindLanding(EngineState& state, const kv::ReservationKey& key, uint32_t attempt);
// Whether the step in flight may be at work on the request's pages.
bool WaitsForStep(const EngineState& state, const ActiveRequest& request);
// Begins to move staged pages.
void BeginLanding(EngineState& state, Landing landing);
// Where the first `count` pages of a shipped layer belong, in as few pieces as they lie.
std::vector<std::span<std::byte>> LandingPages(EngineState& state,
                                               const Sequence& sequence,
                                               int32_t layer,
                                               int32_t count);
// Staged pages [begin, end) of a shipped layer, to be moved to where they belong.
LandingPart PartOf(
    EngineState& state, const Sequence& sequence, int32_t layer, int32_t begin, int32_t end);

// commit.cc: makes landed KV visible, once. kInvalidArgument when `info` does not match the
// reservation (it stays open for another attempt), kFailedPrecondition when the key or the attempt
// is stale. On OK the window has been withdrawn and the sequences join the next step.
absl::Status CommitReservation(EngineState& state,
                               const kv::ReservationKey& key,
                               uint32_t attempt,
                               CommitInfo info);

// cancel.cc: ends a live request; one that is unknown, or not yet here, or another one of that id
// is left alone. CancelStatus is what the listener is told.
void CancelRequest(EngineState& state,
                   std::string_view request_id,
                   uint64_t serial,
                   const absl::Status& reason);
absl::Status CancelStatus(const absl::Status& reason);

// expire.cc: ends requests past their deadline and reservations past their lease. NextExpiry is
// when it has to run again.
void ExpireRequests(EngineState& state);
absl::Time NextExpiry(const EngineState& state);

// schedule_step.cc: submits the next step if none is in flight and there is something to run.
void ScheduleStep(EngineState& state);

// retire_step.cc: takes the results of a step. A failed step ends the requests in it with kInternal
// and nothing else.
void RetireStep(EngineState& state, std::unique_ptr<Step> step);

// deliver_first_tokens.cc: the listener of a prompt gets what its last step has drawn, while the
// step still codes and ships. Not that of a continued request, which has tokens already.
void DeliverFirstTokens(EngineState& state,
                        ActiveRequest& request,
                        std::span<const TokenOutput> tokens,
                        absl::Time drawn);

// hand_off.cc: the prompt is prefilled and its first tokens are drawn; gives them to the listener,
// if it has not got them, and commits to the sink when all pages have reached it: now or by
// CommitShipped. FinishHandOff takes the sink's answer, to Commit or to Abort.
void HandOff(EngineState& state, ActiveRequest& request, std::span<const TokenOutput> first_tokens);
void CommitShipped(EngineState& state, ActiveRequest& request);
void FinishHandOff(EngineState& state,
                   uint64_t request_serial,
                   const absl::Status& status,
                   int64_t wire_bytes);

// finish_copies.cc: pages have come from the device and the sink has them, or a staged prompt is on
// the device; an error ends the request with kInternal.
void FinishCopies(EngineState& state, ActiveRequest& request, const absl::Status& status);

// start_decoding.cc: the prompt's KV is in place and the first tokens are known: the sequences that
// these do not end join the next step. `deliver` says whether the listener gets the first tokens
// now (role both) or has them already (role decode, DeliverFirstTokens).
void StartDecoding(EngineState& state,
                   ActiveRequest& request,
                   std::span<const TokenOutput> first_tokens,
                   bool deliver);

// take_token.cc: the sequence takes the next token, the one drawn or, in a continued request, the
// one that its client has already. `deliver`: the listener is told what it was not told before.
void TakeToken(EngineState& state,
               ActiveRequest& request,
               Sequence& sequence,
               const TokenOutput& drawn,
               bool deliver);

// expand.cc: the upper layers of a prompt are made from its hidden states, some tokens in each
// step: as far as these have landed and, once it is committed, the rest. Then its sequences start
// to decode. NextExpansion is the next step's, without a request where there is none.
// AwaitExpansion joins those that it chooses from, once.
StepExpansion NextExpansion(const EngineState& state);
void AwaitExpansion(EngineState& state, ActiveRequest& request);
void StartExpansion(EngineState& state, ActiveRequest& request);
void FinishExpansion(EngineState& state, ActiveRequest& request);

// deliver.cc: what a request's listener is to be told, once TellListeners is called: how far the
// prompt is, a token, if there is one, and the end of its sequence, if that is it; the request's
// end, behind which it has no listener any more. TellListeners calls listeners in the order of all
// these.
void DeliverProgress(EngineState& state, const ActiveRequest& request, int64_t done);
void DeliverToken(EngineState& state,
                  const ActiveRequest& request,
                  int32_t sequence_index,
                  const std::optional<TokenOutput>& token,
                  const std::optional<SequenceFinish>& finish);
void DeliverDone(EngineState& state, ActiveRequest& request, const absl::Status& status);
void TellListeners(EngineState& state);

// end_request.cc: the request leaves its phase and its listener is to get OnDone. Pages follow when
// nothing refers to them (ReleaseEnded).
void EndRequest(EngineState& state, ActiveRequest& request, const absl::Status& status);
void EndAllRequests(EngineState& state, const absl::Status& status);

// release.cc: the reservation is gone from the tables and nothing may land in its pages any more;
// the pages stay with the request.
void ReleaseReservation(EngineState& state, const ActiveRequest& request);
// release.cc: once per round, aborts sinks that were never committed and returns the pages of ended
// requests to which nothing refers any more, or keeps them for the next turn.
void ReleaseEnded(EngineState& state);

// publish_load.cc: refreshes the load snapshot.
void PublishLoad(EngineState& state);

}  // namespace baton::engine
