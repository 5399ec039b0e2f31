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

std::vector<std::span<std::byte>> DensePagesOf(EngineState& state,
                                               const Sequence& sequence,
                                               int32_t layer,
                                               int32_t count) {
  std::vector<std::span<std::byte>> pages;
  pages.reserve(static_cast<size_t>(count));
  for (int32_t page = 0; page < count; ++page) {
    pages.push_back(state.parts.pool->page(sequence.pages.at(layer, page))
                        .first(state.parts.format->page_bytes()));
  }
  return pages;
}

// `count` pages of a prompt's window, from the one at `begin` on.
std::vector<std::span<std::byte>> FirstPages(std::span<const std::span<std::byte>> window,
                                             size_t begin,
                                             int32_t count) {
  const auto pages = window.subspan(begin, static_cast<size_t>(count));
  return {pages.begin(), pages.end()};
}

// Where the pages that were sent of each shipped layer belong, and those of hidden states.
StepLanding MakeLanding(EngineState& state, ActiveRequest& request, std::span<const int32_t> sent) {
  Sequence& sequence = request.sequences.front();
  StepLanding landing = {.request = &request, .sequence = &sequence, .pages = {}};
  std::vector<std::span<std::byte>> window;
  if (sequence.encoded != nullptr) {
    window = sequence.encoded->Window();
  }
  const auto per_layer = static_cast<size_t>(
      PromptWindow(*state.parts.format, request.kv, request.prompt_tokens).pages_per_layer);
  for (size_t layer = 0; layer < sent.size(); ++layer) {
    landing.pages.push_back(
        window.empty() ? DensePagesOf(state, sequence, static_cast<int32_t>(layer), sent[layer])
                       : FirstPages(window, layer * per_layer, sent[layer]));
  }
  if (sequence.hidden != nullptr) {
    landing.pages.push_back(sequence.hidden->Window());
  }
  return landing;
}

}  // namespace

void StartLanding(EngineState& state, ActiveRequest& request, std::span<const int32_t> sent) {
  request.phase = Phase::kLanding;
  state.pending_landings.push_back(MakeLanding(state, request, sent));
}

void FinishLanding(EngineState& state, ActiveRequest& request) {
  request.sequences.front().staged = nullptr;
  if (request.sequences.front().hidden != nullptr) {
    StartExpansion(state, request);
    return;
  }
  const std::vector<TokenOutput> first_tokens = std::move(request.first_tokens);
  StartDecoding(state, request, first_tokens, /*deliver=*/false);
}

}  // namespace baton::engine
