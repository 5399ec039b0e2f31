#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/engine/operations/operations.h"
#include "common/engine/sequence.h"

namespace baton::engine {
namespace {

// Only KV that has been decoded from: before, an encoded prompt may be incomplete, and one that has
// landed may be on its way to the device. A request that failed may have failed in the middle of a
// step.
bool CanKeep(const EngineState& state, const ActiveRequest& request) {
  return !request.session_id.empty() && state.parts.options.max_kept_sessions > 0 &&
         request.decode_started != absl::InfiniteFuture() && request.sequences.size() == 1 &&
         request.sequences.front().staged == nullptr &&
         (request.end_status.ok() || absl::IsCancelled(request.end_status));
}

std::vector<int32_t> ComputedTokens(const ActiveRequest& request) {
  std::vector<int32_t> ids = request.prompt;
  const Sequence& sequence = request.sequences.front();
  ids.insert(ids.end(), sequence.generated.begin(), sequence.generated.end());
  ids.resize(static_cast<size_t>(sequence.computed_tokens));
  return ids;
}

// Room for tokens that will not come.
void GiveBackPromised(EngineState& state, ActiveRequest& request) {
  Sequence& sequence = request.sequences.front();
  if (sequence.encoded != nullptr) {
    ReleaseWorkingPages(*state.parts.pool, request);
    sequence.encoded->Shrink();
    return;
  }
  sequence.pages.Resize(state.parts.format->PagesPerTable(sequence.computed_tokens),
                        *state.parts.pool);
  request.pages_held = sequence.pages.pages();
}

}  // namespace

bool KeepKv(EngineState& state, ActiveRequest& request) {
  if (!CanKeep(state, request)) {
    return false;
  }
  GiveBackPromised(state, request);
  KeptKv kept = {.session_id = std::move(request.session_id),
                 .kv = request.kv,
                 .token_ids = ComputedTokens(request),
                 .sequence = std::move(request.sequences.front()),
                 .pages_held = request.pages_held,
                 .kept_since = state.Now()};
  if (std::optional<KeptKv> before = state.kept.Put(std::move(kept))) {
    DropKept(state, *std::move(before));
  }
  if (state.kept.size() > static_cast<size_t>(state.parts.options.max_kept_sessions)) {
    DropOldestKept(state);
  }
  return true;
}

void DropKept(EngineState& state, KeptKv kept) {
  kept.sequence.pages.ReleaseAll(*state.parts.pool);
}

bool DropOldestKept(EngineState& state) {
  std::optional<KeptKv> oldest = state.kept.TakeOldest();
  if (!oldest.has_value()) {
    return false;
  }
  DropKept(state, *std::move(oldest));
  return true;
}

void ExpireKept(EngineState& state) {
  while (state.kept.oldest() + state.parts.options.kept_ttl <= state.Now()) {
    DropOldestKept(state);
  }
}

void DropAllKept(EngineState& state) {
  while (DropOldestKept(state)) {
  }
}

}  // namespace baton::engine
