#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/engine/kv_choice.h"
#include "common/engine/operations/operations.h"
#include "common/engine/sequence.h"
#include "common/engine/staged_copies.h"

namespace baton::engine {
namespace {

// Whether they follow what is moved already, in all their layers.
bool Continues(const std::vector<int32_t>& moved, const LandedPages& pages) {
  return std::cmp_less_equal(pages.layer_end, moved.size()) &&
         std::all_of(moved.begin() + pages.layer_begin,
                     moved.begin() + pages.layer_end,
                     [&](int32_t count) { return count == pages.page_begin; });
}

}  // namespace

// Of a request with hidden states, steps may be at work: it is moved as a whole.
void LandPages(EngineState& state,
               const kv::ReservationKey& key,
               uint32_t attempt,
               const LandedPages& pages) {
  ActiveRequest* const request = FindLanding(state, key, attempt);
  if (request == nullptr || WaitsForStep(state, *request)) {
    return;
  }
  Sequence& sequence = request->sequences.front();
  if (sequence.staged == nullptr || sequence.hidden != nullptr) {
    return;
  }
  std::vector<int32_t>& moved = request->moved_pages;
  if (moved.empty()) {
    moved.assign(static_cast<size_t>(ShippedLayers(*state.parts.format, request->kv)), 0);
  }
  if (!Continues(moved, pages)) {
    return;
  }
  Landing landing = {.request = request, .sequence = &sequence, .parts = {}};
  for (int32_t layer = pages.layer_begin; layer < pages.layer_end; ++layer) {
    landing.parts.push_back(PartOf(state, sequence, layer, pages.page_begin, pages.page_end));
    moved[static_cast<size_t>(layer)] = pages.page_end;
  }
  BeginLanding(state, std::move(landing));
}

}  // namespace baton::engine
