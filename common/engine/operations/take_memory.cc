#include "common/engine/operations/operations.h"

namespace baton::engine {
namespace {

bool TakeFresh(EngineState& state, const MemoryUse& use, ActiveRequest& request) {
  while (!AllocateMemory(*state.parts.format, use, *state.parts.pool, request)) {
    if (!DropOldestKept(state)) {
      return false;
    }
  }
  return true;
}

}  // namespace

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
