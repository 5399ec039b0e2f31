#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/engine/operations/operations.h"
#include "common/engine/sequence.h"
#include "common/kv/codec/encoded_kv.h"

namespace baton::engine {
namespace {

// Where the pages that were sent of each shipped layer belong, and those of hidden states.
StepLanding MakeLanding(EngineState& state, ActiveRequest& request, std::span<const int32_t> sent) {
  Sequence& sequence = request.sequences.front();
  StepLanding landing = {.request = &request, .sequence = &sequence, .targets = {}};
  for (size_t layer = 0; layer < sent.size(); ++layer) {
    landing.targets.push_back(
        LandingPages(state, sequence, static_cast<int32_t>(layer), sent[layer]));
  }
  if (sequence.hidden != nullptr) {
    landing.targets.push_back({sequence.hidden->pages(0, sequence.hidden->shape().pages())});
  }
  return landing;
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
  state.pending_landings.push_back(MakeLanding(state, request, sent));
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
