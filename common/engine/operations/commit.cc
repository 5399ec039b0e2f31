#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/engine/operations/operations.h"
#include "common/engine/sampling/penalty_state.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_format.h"

namespace baton::engine {
namespace {

// `info` comes from another worker.
absl::Status CheckInfo(const EngineState& state,
                       const ActiveRequest& request,
                       const CommitInfo& info) {
  const auto n = static_cast<size_t>(request.sampling.n);
  const int32_t vocab = state.parts.limits.vocab_size;
  if (info.first_tokens.size() != n || (!info.finished.empty() && info.finished.size() != n)) {
    return absl::InvalidArgumentError(absl::StrCat("commit carries ",
                                                   info.first_tokens.size(),
                                                   " first tokens and ",
                                                   info.finished.size(),
                                                   " finish flags; the reservation has n = ",
                                                   n));
  }
  const bool in_vocabulary = std::all_of(
      info.first_tokens.begin(), info.first_tokens.end(), [&](const TokenOutput& token) {
        return token.token_id >= 0 && token.token_id < vocab;
      });
  if (!in_vocabulary) {
    return absl::InvalidArgumentError("commit carries a first token outside the vocabulary");
  }
  if (request.sampling.repetition_penalty != 1.0f &&
      info.prompt_token_bitmap.size() != TokenBitmapBytes(vocab)) {
    return absl::InvalidArgumentError(absl::StrCat("commit carries a prompt token bitmap of ",
                                                   info.prompt_token_bitmap.size(),
                                                   " bytes; repetition_penalty needs ",
                                                   TokenBitmapBytes(vocab)));
  }
  return absl::OkStatus();
}

void AdoptPenalties(CommitInfo& info, ActiveRequest& request) {
  if (request.sampling.repetition_penalty == 1.0f) {
    return;
  }
  request.prompt_bitmap = std::make_shared<const TokenBitmap>(std::move(info.prompt_token_bitmap));
  for (Sequence& sequence : request.sequences) {
    sequence.penalties = PenaltyState(request.prompt_bitmap);
  }
}

// Of each shipped layer.
absl::StatusOr<std::vector<int32_t>> SentPages(const EngineState& state,
                                               const ActiveRequest& request,
                                               const CommitInfo& info) {
  const kv::KvFormat& format = *state.parts.format;
  const int32_t layers = ShippedLayers(format, request.kv);
  const kv::EncodedKv* encoded = request.sequences.front().encoded.get();
  return encoded != nullptr ? encoded->SentPages(info.kv_state, layers)
                            : std::vector<int32_t>(static_cast<size_t>(layers),
                                                   format.PagesPerTable(request.prompt_tokens));
}

absl::Status Adopt(std::string_view kv_state, int32_t layers, ActiveRequest& request) {
  const Sequence& first = request.sequences.front();
  if (first.encoded == nullptr) {
    return absl::OkStatus();
  }
  return first.staged == nullptr ? first.encoded->Adopt(kv_state, layers)
                                 : first.encoded->AdoptStaged(kv_state, layers, *first.staged);
}

}  // namespace

absl::Status CommitReservation(EngineState& state,
                               const kv::ReservationKey& key,
                               uint32_t attempt,
                               CommitInfo info) {
  BATON_RETURN_IF_ERROR(state.reservations.CheckAttempt(key, attempt, state.Now()));
  const auto entry = state.reserved.find(key.reservation_id);
  BATON_CHECK(entry != state.reserved.end());
  ActiveRequest& request = *entry->second;
  BATON_RETURN_IF_ERROR(CheckInfo(state, request, info));
  BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> sent, SentPages(state, request, info));
  // From here on no write from outside may land: steps are about to read and write the pages.
  ReleaseReservation(state, request);
  const Sequence& first = request.sequences.front();
  if (first.encoded != nullptr || first.hidden != nullptr || first.staged != nullptr) {
    request.landed = state.Now();
  }
  request.phase = Phase::kPrefilling;  // prefilled elsewhere; StartDecoding follows at once
  AdoptPenalties(info, request);
  if (const absl::Status status =
          Adopt(info.kv_state, ShippedLayers(*state.parts.format, request.kv), request);
      !status.ok()) {
    EndRequest(state, request, absl::DataLossError(status.message()));
    return absl::DataLossError(status.message());
  }
  request.stats.kv_wire_bytes = info.kv_wire_bytes;
  request.first_tokens = std::move(info.first_tokens);
  if (request.sequences.front().staged != nullptr) {
    StartLanding(state, request, sent);
  } else {
    FinishLanding(state, request);
  }
  return absl::OkStatus();
}

}  // namespace baton::engine
