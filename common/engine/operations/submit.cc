#include <memory>
#include <utility>

#include "common/engine/kv_choice.h"
#include "common/engine/operations/operations.h"
#include "common/engine/sampling/penalty_state.h"

namespace baton::engine {

void RecordPromptTokens(const EngineState& state, ActiveRequest& request) {
  if (request.sampling.repetition_penalty != 1.0f && !request.prompt.empty()) {
    request.prompt_bitmap = std::make_shared<const TokenBitmap>(
        MakeTokenBitmap(request.prompt, state.parts.limits.vocab_size));
  }
}

void QueueRequest(EngineState& state,
                  uint64_t serial,
                  GenerateRequest request,
                  const KvChoice& kv,
                  std::shared_ptr<RequestListener> listener,
                  absl::Time submitted) {
  auto active = std::make_unique<ActiveRequest>();
  active->serial = serial;
  active->id = std::move(request.request_id);
  active->listener = std::move(listener);
  active->sink = std::move(request.sink);
  active->sampling = std::move(request.sampling);
  active->kv = kv;
  active->stats.kv_policy = active->kv.canonical();
  active->session_id = std::move(request.session_id);
  active->delivered = std::move(request.delivered);
  active->prompt = std::move(request.prompt);
  active->prompt_tokens = static_cast<int64_t>(active->prompt.size());
  active->stats.prompt_tokens = active->prompt_tokens;
  RecordPromptTokens(state, *active);
  active->deadline = request.deadline;
  active->submitted = submitted;
  active->phase = Phase::kQueued;
  state.waiting.push_back(active.get());
  ActiveRequest& queued = *active;
  state.requests.emplace(queued.id, std::move(active));
  if (const auto reason = state.parts.gate->CancelReason(queued.id)) {
    EndRequest(state, queued, CancelStatus(*reason));
  }
}

}  // namespace baton::engine
