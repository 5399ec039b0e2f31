// A numbered step: what the engine thread asks of the executor, and what comes back.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/engine/active_request.h"
#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "common/engine/sampling/sampler.h"
#include "common/engine/sequence.h"
#include "common/kv/pool/page_copies.h"
#include "common/model/forward.h"

namespace baton::engine {

// Pages that become final with a step and go to a sink, layer by layer.
struct ShipRange {
  KvSink* sink = nullptr;  // null: nothing to ship
  int32_t page_begin = 0;  // dense pages of each shipped layer
  int32_t page_end = 0;
  int32_t hidden_begin = 0;  // pages of hidden states
  int32_t hidden_end = 0;
};

// The rows of one sequence.
struct StepSequence {
  ActiveRequest* request = nullptr;  // for the engine thread
  Sequence* sequence = nullptr;
  int64_t token_begin = 0;
  int32_t token_count = 0;
  bool prefill = false;
  bool completes_prompt = false;
  ShipRange ship;
};

// Whether its pages, a device's, reach the sink when they are there, which may be after the step
// (staged_copies.h).
inline bool ShipsBehind(const StepSequence& rows) {
  return rows.ship.sink != nullptr &&
         (rows.sequence->staged != nullptr || rows.sequence->ships_in_place);
}

// What a prompt's last step draws, one token for each answer.
struct FirstTokens {
  ActiveRequest* request = nullptr;  // for the engine thread
  std::vector<TokenOutput> tokens;
  absl::Time drawn;
};

// Prompt tokens whose hidden states become keys and values of the upper layers.
struct StepExpansion {
  ActiveRequest* request = nullptr;  // null: none
  Sequence* sequence = nullptr;
  int64_t token_begin = 0;
  int32_t token_count = 0;
  bool landing = false;  // the rest is still on its way: a device's are where they are staged
  bool completes_prompt = false;
};

// A token to draw. n jobs may share one row of logits.
struct SampleJob {
  ActiveRequest* request = nullptr;  // for the engine thread
  Sequence* sequence = nullptr;
  int32_t logit_row = 0;  // index among the step's logit rows
  SampleInput input;      // logits are filled in by the executor
  absl::StatusOr<TokenOutput> output = absl::UnknownError("not drawn");
};

// Built by the engine thread, owned by the executor while it runs, then handed back. Requests and
// sequences that it points to stay alive because each counts the steps in flight that refer to it.
struct Step {
  uint64_t number = 0;
  std::vector<kv::PageCopies> copies;  // before the forward pass, one for each pool
  // The packed rows.
  std::vector<int32_t> token_ids;
  std::vector<int32_t> positions;
  std::vector<model::SequenceSlice> slices;
  std::vector<int32_t> survivors;
  std::vector<int32_t> logit_rows;
  std::vector<StepSequence> sequences;  // one per slice
  std::vector<SampleJob> samples;
  StepExpansion expansion;
  std::vector<ActiveRequest*> requests;  // every request referred to, once
  int32_t prefill_tokens = 0;
  int32_t decode_tokens = 0;

  // Results.
  absl::Status status;
  absl::Time started;
  absl::Time finished;
};

}  // namespace baton::engine
