#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/pieces.h"
#include "common/engine/operations/operations.h"
#include "common/engine/sequence.h"
#include "common/engine/staged_copies.h"
#include "common/kv/codec/encoded_kv.h"

namespace baton::engine {
namespace {

// What has not been moved yet of the pages that were sent of each shipped layer, and hidden states.
Landing MakeLanding(EngineState& state, ActiveRequest& request, std::span<const int32_t> sent) {
  Sequence& sequence = request.sequences.front();
  Landing landing = {.request = &request, .sequence = &sequence, .parts = {}};
  for (size_t i = 0; i < sent.size(); ++i) {
    const int32_t moved = request.moved_pages.empty() ? 0 : request.moved_pages[i];
    if (moved < sent[i]) {
      landing.parts.push_back(PartOf(state, sequence, static_cast<int32_t>(i), moved, sent[i]));
    }
  }
  if (sequence.hidden != nullptr) {
    landing.parts.push_back(
        {.layer = static_cast<int32_t>(sent.size()),
         .page_begin = 0,
         .targets = {sequence.hidden->pages(0, sequence.hidden->shape().pages())}});
  }
  return landing;
}

}  // namespace

ActiveRequest* FindLanding(EngineState& state, const kv::ReservationKey& key, uint32_t attempt) {
  if (!state.reservations.CheckAttempt(key, attempt, state.Now()).ok()) {
    return nullptr;
  }
  const auto entry = state.reserved.find(key.reservation_id);
  BATON_CHECK(entry != state.reserved.end());
  ActiveRequest* const request = entry->second;
  return request->accept_attempt == nullptr ? request : nullptr;
}

// It expands the request, or was there before the pages were reserved, when they may have been
// another one's.
bool WaitsForStep(const EngineState& state, const ActiveRequest& request) {
  return state.step_in_flight &&
         (request.steps_in_flight > 0 || request.reserved_before == state.next_step);
}

void BeginLanding(EngineState& state, Landing landing) {
  ++landing.request->copies_in_flight;
  state.parts.executor->Land(std::move(landing));
}

LandingPart PartOf(
    EngineState& state, const Sequence& sequence, int32_t layer, int32_t begin, int32_t end) {
  const size_t skipped = sequence.staged->pages(layer, 0, begin).size();
  return {.layer = layer,
          .page_begin = begin,
          .targets = Behind(skipped, LandingPages(state, sequence, layer, end))};
}

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
    BeginLanding(state, std::move(landing));
  }
}

void BeginPendingLandings(EngineState& state) {
  for (Landing& landing : std::exchange(state.pending_landings, {})) {
    BeginLanding(state, std::move(landing));
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
