#include <memory>
#include <utility>

#include "common/engine/kv_choice.h"
#include "common/engine/operations/operations.h"
#include "common/kv/codec/staged_window.h"

namespace baton::engine {
namespace {

// Where the prompt's pages are staged for a hand-off, sets `staged`; false: there is too little
// memory for that now.
bool TakeStaging(EngineState& state,
                 const ActiveRequest& request,
                 std::unique_ptr<kv::StagedWindow>& staged) {
  if (state.parts.staging == nullptr || ShipsInPlace(state, request)) {
    return true;
  }
  staged =
      kv::StagedWindow::Take(state.parts.staging,
                             *state.parts.landing,
                             PromptShape(*state.parts.format, request.kv, request.prompt_tokens));
  return staged != nullptr;
}

bool TakeFresh(EngineState& state, const MemoryUse& use, ActiveRequest& request) {
  std::unique_ptr<kv::StagedWindow> staged;
  if (!TakeStaging(state, request, staged)) {
    return false;
  }
  while (!AllocateMemory(*state.parts.format, use, *state.parts.pool, request)) {
    if (!DropOldestKept(state)) {
      return false;
    }
  }
  Sequence& first = request.sequences.front();
  first.ships_in_place = state.parts.staging != nullptr && staged == nullptr;
  first.staged = std::move(staged);
  return true;
}

}  // namespace

bool ShipsInPlace(const EngineState& state, const ActiveRequest& request) {
  return state.parts.staging != nullptr && request.sink != nullptr && request.sink->reads_devices();
}

bool TakeMemory(EngineState& state, const MemoryUse& use, ActiveRequest& request) {
  const bool extends = ExtendKept(state, request);
  if (!extends && !TakeFresh(state, use, request)) {
    return false;
  }
  if (!request.session_id.empty() && state.parts.observer != nullptr) {
    state.parts.observer->OnSessionTurn(extends);
  }
  return true;
}

}  // namespace baton::engine
