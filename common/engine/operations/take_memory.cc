#include "common/engine/operations/operations.h"

namespace baton::engine {

bool TakeMemory(EngineState& state, const MemoryUse& use, ActiveRequest& request) {
  while (!AllocateMemory(*state.parts.format, use, *state.parts.pool, request)) {
    if (!DropOldestKept(state)) {
      return false;
    }
  }
  return true;
}

}  // namespace baton::engine
