#include "common/scheduling/pair_choice.h"

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>

namespace baton::scheduling {
namespace {

bool HasFreeSlot(const PrefillLoad& load) {
  return load.ready && load.free_slots > load.unreported_requests;
}

// Tokens that the pool can still promise. Pages are counted by the worker in its own unit, so only
// their ratio is used.
double FreeTokens(const DecodeLoad& load) {
  const double free_share = load.pages_total > 0 ? static_cast<double>(load.pages_free) /
                                                       static_cast<double>(load.pages_total)
                                                 : 1.0;
  return free_share * static_cast<double>(load.pool_tokens) -
         static_cast<double>(load.unreported_tokens);
}

bool Idle(const DecodeLoad& load) {
  return load.running_sequences == 0 && load.reservations == 0 && load.unreported_requests == 0;
}

bool HasRoom(const DecodeLoad& load, const PairNeeds& needs) {
  if (!load.ready || load.refused) {
    return false;
  }
  if (load.pool_tokens == 0) {
    return true;
  }
  if (load.pool_tokens < needs.total_tokens) {
    return false;  // it never will; another pool is larger
  }
  // The estimate is coarse (page slack, shared prompt pages); an idle worker decides by itself.
  return Idle(load) || FreeTokens(load) >= static_cast<double>(needs.total_tokens);
}

double ShareLeft(const DecodeLoad& load, const PairNeeds& needs) {
  if (load.pool_tokens == 0) {
    return 0.0;
  }
  return (FreeTokens(load) - static_cast<double>(needs.total_tokens)) /
         static_cast<double>(load.pool_tokens);
}

}  // namespace

std::optional<uint64_t> ChoosePrefill(std::span<const PrefillLoad> prefills,
                                      const PairNeeds& needs) {
  const auto cost = [&](const PrefillLoad& load) {
    return std::tuple(needs.avoid_prefill == load.worker,
                      load.waiting_tokens + load.unreported_tokens,
                      load.unreported_requests);
  };
  const PrefillLoad* best = nullptr;
  for (const PrefillLoad& load : prefills) {
    if (HasFreeSlot(load) && (best == nullptr || cost(load) < cost(*best))) {
      best = &load;
    }
  }
  return best == nullptr ? std::nullopt : std::optional<uint64_t>(best->worker);
}

std::optional<uint64_t> ChooseDecode(std::span<const DecodeLoad> decodes,
                                     const PairNeeds& needs,
                                     bool must_prefill) {
  const auto cost = [&](const DecodeLoad& load) {
    return std::tuple(needs.avoid_decode == load.worker,
                      needs.prefer_decode != load.worker,
                      -ShareLeft(load, needs),
                      load.running_sequences + load.unreported_requests);
  };
  const DecodeLoad* best = nullptr;
  for (const DecodeLoad& load : decodes) {
    if (HasRoom(load, needs) && (load.can_prefill || !must_prefill) &&
        (best == nullptr || cost(load) < cost(*best))) {
      best = &load;
    }
  }
  return best == nullptr ? std::nullopt : std::optional<uint64_t>(best->worker);
}

std::optional<WorkerPair> ChoosePair(std::span<const PrefillLoad> prefills,
                                     std::span<const DecodeLoad> decodes,
                                     const PairNeeds& needs) {
  const bool any_prefill = std::ranges::any_of(prefills, &PrefillLoad::ready);
  std::optional<uint64_t> prefill;
  if (any_prefill) {
    prefill = ChoosePrefill(prefills, needs);
    if (!prefill.has_value()) {
      return std::nullopt;
    }
  }
  const std::optional<uint64_t> decode =
      ChooseDecode(decodes, needs, /*must_prefill=*/!any_prefill);
  if (!decode.has_value()) {
    return std::nullopt;
  }
  return WorkerPair{.prefill = prefill, .decode = *decode};
}

bool CanServe(std::span<const PrefillLoad> prefills, std::span<const DecodeLoad> decodes) {
  const bool any_prefill = std::ranges::any_of(prefills, &PrefillLoad::ready);
  return std::ranges::any_of(decodes, [&](const DecodeLoad& load) {
    return load.ready && (any_prefill || load.can_prefill);
  });
}

}  // namespace baton::scheduling
