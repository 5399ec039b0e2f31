#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/engine/operations/operations.h"
#include "common/engine/sequence.h"

namespace baton::engine {
namespace {

// The next token of what the client has of the sequence, if there is more of it.
std::optional<int32_t> NextDelivered(const ActiveRequest& request, const Sequence& sequence) {
  if (request.delivered.empty()) {
    return std::nullopt;
  }
  const std::vector<int32_t>& delivered = request.delivered[static_cast<size_t>(sequence.index)];
  const size_t taken = sequence.generated.size();
  return taken < delivered.size() ? std::optional(delivered[taken]) : std::nullopt;
}

}  // namespace

void TakeToken(EngineState& state,
               ActiveRequest& request,
               Sequence& sequence,
               const TokenOutput& drawn,
               bool deliver) {
  const std::optional<int32_t> delivered = NextDelivered(request, sequence);
  const int32_t token = delivered.value_or(drawn.token_id);
  const std::optional<SequenceFinish> finish = AcceptToken(request.sampling, token, sequence);
  ++request.stats.completion_tokens;
  if (deliver) {
    const bool is_new = !delivered.has_value();
    DeliverToken(
        state, request, sequence.index, is_new ? std::optional(drawn) : std::nullopt, finish);
  }
}

}  // namespace baton::engine
