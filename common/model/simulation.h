// How long the steps of a simulated model take.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::model {

// The defaults are those of a small model on one GPU, rounded.
struct Simulation {
  // A step with prompt rows: so long by itself, and so much longer by its prompt tokens.
  absl::Duration prefill_step = absl::Milliseconds(5);
  double prefill_tokens_per_second = 20'000;
  // A step with decode rows: so long by itself, and by each of its sequences.
  absl::Duration decode_step = absl::Milliseconds(10);
  absl::Duration decode_sequence = absl::Microseconds(20);

  // Time of a step; the two parts of a mixed one add up.
  absl::Duration StepTime(int64_t prompt_tokens, int64_t decode_sequences) const;
};

// From `key=number,...` with the keys prefill_ms, prefill_tps, decode_ms and decode_seq_ms, in the
// order of the fields; those that are missing keep their defaults, "default" keeps all.
// kInvalidArgument names the key that is unknown, twice there or out of range.
absl::StatusOr<Simulation> ParseSimulation(std::string_view text);

}  // namespace baton::model
