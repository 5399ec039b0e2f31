#include <vector>

#include "common/engine/operations/operations.h"
#include "common/engine/step_builder.h"
#include "common/scheduling/step_planner.h"

namespace baton::engine {
namespace {

scheduling::StepPlan Plan(const EngineState& state) {
  std::vector<scheduling::PromptProgress> prompts;
  prompts.reserve(state.prefilling.size());
  for (const ActiveRequest* request : state.prefilling) {
    prompts.push_back({.prompt_tokens = request->prompt_tokens,
                       .computed_tokens = request->sequences.front().computed_tokens});
  }
  const EngineOptions& options = state.parts.options;
  return scheduling::PlanStep({.step_token_budget = options.step_token_budget,
                               .prefill_chunk_tokens = options.prefill_chunk_tokens},
                              static_cast<int32_t>(state.decoding.size()),
                              prompts);
}

void AddDecodeRows(EngineState& state, int32_t rows, StepBuilder& builder) {
  for (int32_t i = 0; i < rows; ++i) {
    const DecodingSequence entry = state.decoding.front();
    builder.AddDecodeRow(*entry.request, *entry.sequence);
    state.decoding.pop_front();
    state.decoding.push_back(entry);
  }
}

void AddChunks(EngineState& state,
               const std::vector<scheduling::PrefillChunk>& chunks,
               StepBuilder& builder) {
  const absl::Time now = state.Now();
  for (const scheduling::PrefillChunk& chunk : chunks) {
    ActiveRequest& request = *state.prefilling[chunk.prompt_index];
    if (chunk.token_begin == request.cached_tokens) {
      request.prefill_started = now;
      request.stats.queue_time = now - request.submitted;
    }
    builder.AddPrefillChunk(request, chunk);
  }
}

}  // namespace

void ScheduleStep(EngineState& state) {
  if (state.step_in_flight || state.stopping) {
    return;
  }
  const scheduling::StepPlan plan = Plan(state);
  const StepExpansion expansion = NextExpansion(state);
  if (plan.empty() && expansion.request == nullptr) {
    return;
  }
  StepBuilder builder(state.next_step++, *state.parts.format);
  for (const PendingCopies& copies : state.pending_copies) {
    builder.AddCopies(*copies.request, copies.copies);
  }
  state.pending_copies.clear();
  if (expansion.request != nullptr) {
    builder.AddExpansion(expansion);
  }
  AddDecodeRows(state, plan.decode_rows, builder);
  AddChunks(state, plan.chunks, builder);
  state.step_in_flight = true;
  state.parts.executor->Submit(builder.Build());
}

}  // namespace baton::engine
