// A request while the engine knows it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/engine/kv_choice.h"
#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "common/engine/sampling/penalty_state.h"
#include "common/engine/sequence.h"
#include "common/kv/pool/reservation_table.h"

namespace baton::engine {

// Where a request is. Which phases occur depends on the role:
//   both     queued -> prefilling -> decoding -> ended
//   prefill  queued -> prefilling -> handing off -> ended
//   decode   reserved -> (landing ->) (expanding ->) decoding -> ended; from kept KV as `both`, not
//   queued
// Any phase may go to ended at once (cancel, deadline, lease, failure).
enum class Phase {
  kQueued,
  kPrefilling,
  kHandingOff,
  kReserved,
  kLanding,
  kExpanding,
  kDecoding,
  kEnded,
};

// The word in deadline messages: queue, prefill, transfer or decode.
std::string_view PhaseName(Phase phase);

// Engine thread only, except what Sequence says. "Ended" (the listener has its OnDone) and
// "releasable" (nobody refers to the pages) are different facts: an ended request keeps its pages
// until releasable() holds.
struct ActiveRequest {
  uint64_t serial = 0;  // unique in the life of the engine, unlike the id
  std::string id;
  std::shared_ptr<RequestListener> listener;
  std::unique_ptr<KvSink> sink;
  KvChoice kv;
  SamplingParams sampling;
  std::string session_id;       // empty: the KV goes when the request ends
  std::vector<int32_t> prompt;  // empty in role decode, unless there is a session
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;                         // first ones of the prompt, whose KV was kept
  std::shared_ptr<const TokenBitmap> prompt_bitmap;  // only with a repetition penalty
  absl::Time deadline;

  Phase phase = Phase::kQueued;
  std::vector<Sequence> sequences;              // sequences[0] owns the prompt's pages
  std::vector<std::vector<int32_t>> delivered;  // [n] of a continued request, else empty
  kv::ReservationKey reservation;               // phase kReserved
  uint64_t reserved_before = 0;                 // the step that was next when pages were reserved
  int64_t pages_held = 0;                       // references of this request's page tables
  int32_t running_slots = 0;                    // of max_running_sequences
  // Phase kReserved: so many first pages of each shipped layer, of the newest attempt, are moved to
  // their places or on their way there; empty: none are.
  std::vector<int32_t> moved_pages;
  // The KV of the upper layers is made from hidden states as these land (phase kReserved) and when
  // all have (kExpanding).
  int64_t hidden_tokens = 0;    // whose hidden states have landed
  int64_t expanded_tokens = 0;  // whose KV a step has made
  // Phase kReserved: the answer to a new attempt, which has to wait for a step that still reads
  // what an older one has landed. Empty: none does.
  std::function<void(absl::Status)> accept_attempt;
  std::vector<TokenOutput> first_tokens;  // until a committed request decodes
  // Role prefill, phase kHandingOff: what the sink is committed with when it has all pages.
  std::optional<CommitInfo> commit;
  bool first_tokens_delivered = false;  // while the step that drew them was still at work

  // Who still refers to pages or sequences.
  int32_t steps_in_flight = 0;
  int32_t copies_in_flight = 0;  // from and to a device, beside steps (staged_copies.h)
  bool sink_reading = false;     // Commit or Abort was called and has not called back
  bool sink_finished = false;    // it has
  absl::Status end_status;       // of an ended request; the sink's Abort reason

  RequestStats stats;
  absl::Time submitted;
  absl::Time prefill_started = absl::InfiniteFuture();  // its first step
  absl::Time first_token_time = absl::InfiniteFuture();
  // Landed KV that has to be decoded first was committed.
  absl::Time landed = absl::InfiniteFuture();
  absl::Time decode_started = absl::InfiniteFuture();
  bool has_decoded = false;  // a decode step of it has run

  bool ended() const { return phase == Phase::kEnded; }
  // No step reads or writes the pages, and none is on its way from or to a device.
  bool at_rest() const { return steps_in_flight == 0 && copies_in_flight == 0; }
  bool releasable() const { return ended() && at_rest() && !sink_reading; }
  bool AllSequencesFinished() const;
};

}  // namespace baton::engine
