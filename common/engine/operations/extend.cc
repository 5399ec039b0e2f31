#include <optional>
#include <utility>
#include <vector>

#include "common/engine/operations/operations.h"

namespace baton::engine {
namespace {

// A policy that has become another one (a prompt grown out of `dense`, say) starts afresh.
bool CanExtend(const EngineState& state, const ActiveRequest& request, const KeptKv& kept) {
  const auto new_tokens = request.prompt_tokens - static_cast<int64_t>(kept.token_ids.size());
  return kept.IsPrefixOf(request.prompt) && kept.kv.canonical() == request.kv.canonical() &&
         (state.parts.options.role != Role::kDecode ||
          new_tokens <= state.parts.options.max_extension_tokens);
}

}  // namespace

bool ExtendKept(EngineState& state, ActiveRequest& request) {
  if (request.session_id.empty()) {
    return false;
  }
  std::optional<KeptKv> kept = state.kept.Take(request.session_id);
  bool extends = kept.has_value() && CanExtend(state, request, *kept);
  while (extends && !ExtendMemory(*state.parts.format, *state.parts.pool, *kept, request)) {
    extends = DropOldestKept(state);
  }
  if (kept.has_value() && !extends) {
    DropKept(state, *std::move(kept));
  }
  return extends;
}

}  // namespace baton::engine
