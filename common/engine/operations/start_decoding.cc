#include <span>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/engine/operations/operations.h"
#include "common/engine/sequence.h"
#include "common/engine/sequence_memory.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/pool/page_copies.h"
#include "common/kv/pool/page_pool.h"

namespace baton::engine {
namespace {

bool GetsCopies(const Sequence& sequence) { return sequence.index > 0 && !sequence.finished; }

// The partly filled last prompt page belongs to sequence 0; the others get copies before they
// write.
void CopyLastPromptPage(const EngineState& state,
                        ActiveRequest& request,
                        std::vector<kv::PageCopies>& copies) {
  const kv::KvFormat& format = *state.parts.format;
  if (request.prompt_tokens % format.tokens_per_page() == 0) {
    return;
  }
  const int32_t last = format.PagesPerTable(request.prompt_tokens) - 1;
  const kv::PagePool& pool = *state.parts.pool;
  kv::PageCopies pages(pool.base(), pool.stride_bytes());
  for (const Sequence& sequence : request.sequences) {
    for (int32_t table = 0; GetsCopies(sequence) && table < sequence.pages.tables(); ++table) {
      pages.sources.push_back(request.sequences.front().pages.at(table, last));
      pages.targets.push_back(sequence.pages.at(table, last));
    }
  }
  if (!pages.sources.empty()) {
    copies.push_back(std::move(pages));
  }
}

// Each sequence gets its own copy of the encoded prompt: generation changes it. Memory that the
// prompt turned out not to need goes back.
absl::Status CopyEncodedPrompt(const EngineState& state,
                               ActiveRequest& request,
                               std::vector<kv::PageCopies>& copies) {
  ReleaseWorkingPages(*state.parts.pool, request);
  kv::EncodedKv& first = *request.sequences.front().encoded;
  for (Sequence& sequence : request.sequences) {
    if (GetsCopies(sequence)) {
      BATON_RETURN_IF_ERROR(first.CopyTo(*sequence.encoded, copies));
    }
  }
  for (Sequence& sequence : request.sequences) {
    sequence.encoded->Trim();
  }
  return absl::OkStatus();
}

absl::Status CopyPrompt(EngineState& state, ActiveRequest& request) {
  PendingCopies pending = {.request = &request, .copies = {}};
  if (request.sequences.front().encoded == nullptr) {
    CopyLastPromptPage(state, request, pending.copies);
  } else {
    BATON_RETURN_IF_ERROR(CopyEncodedPrompt(state, request, pending.copies));
  }
  if (!pending.copies.empty()) {
    state.pending_copies.push_back(std::move(pending));
  }
  return absl::OkStatus();
}

}  // namespace

void StartDecoding(EngineState& state,
                   ActiveRequest& request,
                   std::span<const TokenOutput> first_tokens,
                   bool deliver) {
  request.phase = Phase::kDecoding;
  request.decode_started = deliver ? request.first_token_time : state.Now();
  if (request.landed != absl::InfiniteFuture()) {
    request.stats.decompress_time = request.decode_started - request.landed;
  }
  request.stats.kv_logical_bytes =
      kv::KvFormat::LogicalBytes(state.parts.dimensions, request.prompt_tokens);
  const kv::EncodedKv* encoded = request.sequences.front().encoded.get();
  request.stats.kv_resident_bytes = encoded == nullptr
                                        ? state.parts.format->ResidentBytes(request.prompt_tokens)
                                        : encoded->ResidentBytes();
  for (size_t i = 0; i < first_tokens.size(); ++i) {
    Sequence& sequence = request.sequences[i];
    sequence.computed_tokens = request.prompt_tokens;
    TakeToken(state, request, sequence, first_tokens[i], deliver);
    if (!sequence.finished) {
      state.decoding.push_back({.request = &request, .sequence = &sequence});
    }
  }
  if (request.AllSequencesFinished()) {
    EndRequest(state, request, absl::OkStatus());
    return;
  }
  if (const absl::Status status = CopyPrompt(state, request); !status.ok()) {
    EndRequest(state, request, absl::InternalError(status.message()));
  }
}

}  // namespace baton::engine
