#include <optional>
#include <utility>

#include "common/engine/operations/operations.h"

namespace baton::engine {
namespace {

// The partly filled last prompt page belongs to sequence 0; the others get copies before they
// write.
void CopyLastPromptPage(EngineState& state, ActiveRequest& request) {
  const kv::KvFormat& format = *state.parts.format;
  if (request.prompt_tokens % format.tokens_per_page() == 0) {
    return;
  }
  const int32_t last = format.PagesPerTable(request.prompt_tokens) - 1;
  PendingCopies copies = {.request = &request, .sources = {}, .targets = {}};
  for (const Sequence& sequence : request.sequences) {
    if (sequence.index == 0 || sequence.finished) {
      continue;
    }
    for (int32_t table = 0; table < sequence.pages.tables(); ++table) {
      copies.sources.push_back(request.sequences.front().pages.at(table, last));
      copies.targets.push_back(sequence.pages.at(table, last));
    }
  }
  if (!copies.sources.empty()) {
    state.pending_copies.push_back(std::move(copies));
  }
}

}  // namespace

void StartDecoding(EngineState& state,
                   ActiveRequest& request,
                   std::span<const TokenOutput> first_tokens,
                   bool deliver) {
  request.phase = Phase::kDecoding;
  request.decode_started = deliver ? request.first_token_time : state.Now();
  request.stats.completion_tokens = static_cast<int64_t>(first_tokens.size());
  request.stats.kv_logical_bytes =
      kv::KvFormat::LogicalBytes(state.parts.dimensions, request.prompt_tokens);
  request.stats.kv_resident_bytes = state.parts.format->ResidentBytes(request.prompt_tokens);
  for (size_t i = 0; i < first_tokens.size(); ++i) {
    Sequence& sequence = request.sequences[i];
    sequence.computed_tokens = request.prompt_tokens;
    const std::optional<SequenceFinish> finish =
        AcceptToken(request.sampling, first_tokens[i].token_id, sequence);
    if (deliver) {
      DeliverToken(request, sequence.index, first_tokens[i], finish);
    }
    if (!finish.has_value()) {
      state.decoding.push_back({.request = &request, .sequence = &sequence});
    }
  }
  if (request.AllSequencesFinished()) {
    EndRequest(state, request, absl::OkStatus());
    return;
  }
  CopyLastPromptPage(state, request);
}

}  // namespace baton::engine
