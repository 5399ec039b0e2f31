#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/engine/operations/operations.h"
#include "common/engine/page_plan.h"

namespace baton::engine {
namespace {

absl::Status Allocate(EngineState& state, ActiveRequest& request) {
  const EngineParts& parts = state.parts;
  if (const auto reason = parts.gate->CancelReason(request.id)) {
    return CancelStatus(*reason);
  }
  BATON_RETURN_IF_ERROR(CheckCapacity(parts.limits, request.prompt_tokens, request.sampling));
  const int32_t n = request.sampling.n;
  if (state.running_slots + n > parts.options.max_running_sequences) {
    return absl::ResourceExhaustedError(absl::StrCat("SEQUENCES_FULL: ",
                                                     state.running_slots,
                                                     " of ",
                                                     parts.options.max_running_sequences,
                                                     " sequences are taken; retry later"));
  }
  const PagePlan plan =
      PlanPages(*parts.format, request.prompt_tokens, n, request.sampling.max_tokens, true);
  if (!AllocateSequences(plan, *parts.pool, request)) {
    return absl::ResourceExhaustedError(absl::StrCat("KV_POOL_FULL: the request needs ",
                                                     plan.pages(),
                                                     " pages, ",
                                                     parts.pool->pages_free(),
                                                     " are free; retry later"));
  }
  request.running_slots = n;
  state.running_slots += n;
  return absl::OkStatus();
}

// Prompt pages in window order. Further sequences share them or copy them at commit.
ReservationGrant MakeGrant(EngineState& state, const ActiveRequest& request) {
  const kv::KvFormat& format = *state.parts.format;
  const kv::PageTable& pages = request.sequences.front().pages;
  ReservationGrant grant = {.reservation_id = request.reservation.reservation_id,
                            .epoch = request.reservation.epoch,
                            .lease = state.reservations.lease(),
                            .prompt_tokens = request.prompt_tokens,
                            .pages_per_layer = format.PagesPerTable(request.prompt_tokens),
                            .pages = {}};
  for (int32_t table = 0; table < pages.tables(); ++table) {
    for (int32_t page = 0; page < grant.pages_per_layer; ++page) {
      grant.pages.push_back(
          state.parts.pool->page(pages.at(table, page)).first(format.page_bytes()));
    }
  }
  return grant;
}

std::unique_ptr<ActiveRequest> MakeRequest(EngineState& state,
                                           uint64_t serial,
                                           ReserveRequest request,
                                           std::shared_ptr<RequestListener> listener) {
  auto active = std::make_unique<ActiveRequest>();
  active->serial = serial;
  active->id = std::move(request.request_id);
  active->listener = std::move(listener);
  active->sampling = std::move(request.sampling);
  active->prompt_tokens = request.prompt_tokens;
  active->stats.prompt_tokens = request.prompt_tokens;
  active->deadline = request.deadline;
  active->submitted = state.Now();
  active->phase = Phase::kReserved;
  return active;
}

}  // namespace

void ReservePages(EngineState& state,
                  uint64_t serial,
                  ReserveRequest request,
                  std::shared_ptr<RequestListener> listener,
                  const Engine::ReserveCallback& granted) {
  std::unique_ptr<ActiveRequest> active =
      MakeRequest(state, serial, std::move(request), std::move(listener));
  if (absl::Status status = Allocate(state, *active); !status.ok()) {
    state.parts.gate->Leave(active->id);
    granted(std::move(status));
    return;
  }
  active->reservation = state.reservations.Add(state.Now());
  state.pages_reserved += active->pages_held;
  const ReservationGrant grant = MakeGrant(state, *active);
  state.reserved.emplace(grant.reservation_id, active.get());
  ActiveRequest& reserved = *active;
  state.requests.emplace(reserved.id, std::move(active));
  granted(grant);
}

}  // namespace baton::engine
