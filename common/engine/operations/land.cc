#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/engine/operations/operations.h"
#include "common/engine/sequence.h"
#include "common/engine/staged_copies.h"
#include "common/kv/codec/encoded_kv.h"

namespace baton::engine {
namespace {

// Where the pages that were sent of each shipped layer belong, and those of hidden states.
Landing MakeLanding(EngineState& state, ActiveRequest& request, std::span<const int32_t> sent) {
  Sequence& sequence = request.sequences.front();
  Landing landing = {.request = &request, .sequence = &sequence, .targets = {}};
  for (size_t layer = 0; layer < sent.size(); ++layer) {
    landing.targets.push_back(
        LandingPages(state, sequence, static_cast<int32_t>(layer), sent[layer]));
  }
  if (sequence.hidden != nullptr) {
    landing.targets.push_back({sequence.hidden->pages(0, sequence.hidden->shape().pages())});
  }
  return landing;
}

// Whether the step in flight may be at work on the request's pages: it expands the request, or was
// there before the pages were reserved, when they may have been another one's.
bool WaitsForStep(const EngineState& state, const ActiveRequest& request) {
  return state.step_in_flight &&
         (request.steps_in_flight > 0 || request.reserved_before == state.next_step);
}

void Begin(EngineState& state, Landing landing) {
  ++landing.request->copies_in_flight;
  state.parts.executor->Land(std::move(landing));
}

}  // namespace

std::vector<std::span<std::byte>> LandingPages(EngineState& state,
                                               const Sequence& sequence,
                                               int32_t layer,
                                               int32_t count) {
  if (sequence.encoded != nullptr) {
    return sequence.encoded->Window(layer, count);
  }
  return state.parts.pool->Pieces(sequence.pages.table(layer).first(static_cast<size_t>(count)),
                                  state.parts.format->page_bytes());
}

void StartLanding(EngineState& state, ActiveRequest& request, std::span<const int32_t> sent) {
  request.phase = Phase::kLanding;
  Landing landing = MakeLanding(state, request, sent);
  if (WaitsForStep(state, request)) {
    state.pending_landings.push_back(std::move(landing));
  } else {
    Begin(state, std::move(landing));
  }
}

void BeginPendingLandings(EngineState& state) {
  for (Landing& landing : std::exchange(state.pending_landings, {})) {
    Begin(state, std::move(landing));
  }
}

void FinishLanding(EngineState& state, ActiveRequest& request) {
  if (request.sequences.front().hidden != nullptr) {
    StartExpansion(state, request);
    return;
  }
  const std::vector<TokenOutput> first_tokens = std::move(request.first_tokens);
  StartDecoding(state, request, first_tokens, /*deliver=*/false);
}

}  // namespace baton::engine
