#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/pieces.h"
#include "common/base/status_macros.h"
#include "common/engine/operations/operations.h"
#include "common/engine/request_checks.h"
#include "common/engine/sequence_memory.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/codec/staged_window.h"

namespace baton::engine {
namespace {

constexpr MemoryUse kDecodeMemory = {.prefills = false, .generates = true};

absl::Status Allocate(EngineState& state, ActiveRequest& request) {
  const EngineParts& parts = state.parts;
  if (const auto reason = parts.gate->CancelReason(request.id)) {
    return CancelStatus(*reason);
  }
  BATON_RETURN_IF_ERROR(
      CheckCapacity(parts.limits, request.kv, request.prompt_tokens, request.sampling));
  const int32_t n = request.sampling.n;
  if (state.running_slots + n > parts.options.max_running_sequences) {
    return absl::ResourceExhaustedError(absl::StrCat("SEQUENCES_FULL: ",
                                                     state.running_slots,
                                                     " of ",
                                                     parts.options.max_running_sequences,
                                                     " sequences are taken; retry later"));
  }
  if (!TakeMemory(state, kDecodeMemory, request)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("KV_POOL_FULL: too little KV memory of format ",
                     request.kv.canonical(),
                     parts.staging == nullptr ? "" : " or memory for prompts that land",
                     " is free for the request now; retry later"));
  }
  request.running_slots = n;
  state.running_slots += n;
  return absl::OkStatus();
}

// Where the prompt lands: in the pages themselves, or beside a device's. Further sequences share
// the pages or copy them at commit.
std::vector<std::span<std::byte>> WindowMemory(EngineState& state,
                                               const ActiveRequest& request,
                                               int32_t pages_per_layer) {
  const Sequence& first = request.sequences.front();
  if (first.staged != nullptr) {
    return {first.staged->memory()};
  }
  std::vector<std::span<std::byte>> memory;
  const int32_t layers = ShippedLayers(*state.parts.format, request.kv);
  for (int32_t layer = 0; layer < layers; ++layer) {
    for (const auto piece : LandingPages(state, first, layer, pages_per_layer)) {
      AddAdjacent(piece, memory);
    }
  }
  if (first.hidden != nullptr) {
    AddAdjacent(first.hidden->pages(0, first.hidden->shape().pages()), memory);
  }
  return memory;
}

void GrantWindow(EngineState& state, const ActiveRequest& request, ReservationGrant& grant) {
  const kv::KvFormat& format = *state.parts.format;
  const Sequence& first = request.sequences.front();
  kv::EncodedKv* encoded = first.encoded.get();
  const kv::WindowShape shape = PromptWindow(format, request.kv, request.prompt_tokens);
  grant.pages_per_layer = shape.pages_per_layer;
  grant.page_bytes = shape.page_bytes;
  grant.hidden_pages = first.hidden == nullptr ? 0 : first.hidden->shape().pages();
  grant.memory = WindowMemory(state, request, shape.pages_per_layer);
  if (encoded != nullptr) {
    grant.sent_pages = [encoded,
                        layers = ShippedLayers(format, request.kv)](std::string_view kv_state) {
      return encoded->SentPages(kv_state, layers);
    };
  }
}

ReservationGrant MakeGrant(EngineState& state, const ActiveRequest& request) {
  ReservationGrant grant;
  grant.reservation_id = request.reservation.reservation_id;
  grant.epoch = request.reservation.epoch;
  grant.lease = state.reservations.lease();
  grant.prompt_tokens = request.prompt_tokens;
  grant.landing = state.parts.landing;
  GrantWindow(state, request, grant);
  return grant;
}

std::unique_ptr<ActiveRequest> MakeRequest(EngineState& state,
                                           uint64_t serial,
                                           ReserveRequest request,
                                           const KvChoice& kv,
                                           std::shared_ptr<RequestListener> listener) {
  auto active = std::make_unique<ActiveRequest>();
  active->serial = serial;
  active->id = std::move(request.request_id);
  active->listener = std::move(listener);
  active->sampling = std::move(request.sampling);
  active->kv = kv;
  active->stats.kv_policy = active->kv.canonical();
  active->session_id = std::move(request.session_id);
  active->delivered = std::move(request.delivered);
  active->prompt = std::move(request.prompt);
  active->prompt_tokens = request.prompt_tokens;
  active->stats.prompt_tokens = request.prompt_tokens;
  RecordPromptTokens(state, *active);
  active->deadline = request.deadline;
  active->submitted = state.Now();
  active->phase = Phase::kReserved;
  return active;
}

// The rest of the prompt is computed here, from the next step on.
void StartExtension(EngineState& state,
                    std::unique_ptr<ActiveRequest> request,
                    const Engine::ReserveCallback& granted) {
  request->phase = Phase::kPrefilling;
  state.prefilling.push_back(request.get());
  const int64_t prompt_tokens = request->prompt_tokens;
  const std::string id = request->id;
  state.requests.emplace(id, std::move(request));
  ReservationGrant grant;
  grant.extends_kept = true;
  grant.prompt_tokens = prompt_tokens;
  granted(grant);
}

}  // namespace

void ReservePages(EngineState& state,
                  uint64_t serial,
                  ReserveRequest request,
                  const KvChoice& kv,
                  std::shared_ptr<RequestListener> listener,
                  const Engine::ReserveCallback& granted) {
  std::unique_ptr<ActiveRequest> active =
      MakeRequest(state, serial, std::move(request), kv, std::move(listener));
  if (absl::Status status = Allocate(state, *active); !status.ok()) {
    state.parts.gate->Leave(active->id);
    granted(std::move(status));
    return;
  }
  if (active->cached_tokens > 0) {
    StartExtension(state, std::move(active), granted);
    return;
  }
  active->reservation = state.reservations.Add(state.Now());
  active->reserved_before = state.next_step;
  state.pages_reserved += active->pages_held;
  const ReservationGrant grant = MakeGrant(state, *active);
  state.reserved.emplace(grant.reservation_id, active.get());
  ActiveRequest& reserved = *active;
  state.requests.emplace(reserved.id, std::move(active));
  granted(grant);
}

}  // namespace baton::engine
