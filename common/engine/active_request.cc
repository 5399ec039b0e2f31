#include "common/engine/active_request.h"

#include <algorithm>
#include <string_view>

#include "common/engine/sequence.h"

namespace baton::engine {

std::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kQueued:
      return "queue";
    case Phase::kPrefilling:
      return "prefill";
    case Phase::kHandingOff:
    case Phase::kReserved:
    case Phase::kLanding:
    case Phase::kExpanding:
      return "transfer";
    case Phase::kDecoding:
      return "decode";
    case Phase::kEnded:
      return "ended";
  }
  return "unknown";
}

bool ActiveRequest::AllSequencesFinished() const {
  return std::all_of(sequences.begin(), sequences.end(), [](const Sequence& sequence) {
    return sequence.finished;
  });
}

}  // namespace baton::engine
