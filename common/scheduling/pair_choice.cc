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

// Tokens that a decode worker's pool has to hold, if it is known.
int64_t LeastPool(std::span<const DecodeLoad> decodes, const PairNeeds& needs) {
  const bool any = std::ranges::any_of(decodes, [&](const DecodeLoad& load) {
    return load.pool_tokens >= needs.total_tokens && (needs.dense || load.ready);
  });
  return any ? needs.total_tokens : 0;
}

// Likewise of a prefill worker's.
int64_t LeastPool(std::span<const PrefillLoad> prefills, const PairNeeds& needs) {
  const bool any = std::ranges::any_of(
      prefills, [&](const PrefillLoad& load) { return load.pool_tokens >= needs.prompt_tokens; });
  return any ? needs.prompt_tokens : 0;
}

// One that is not will never have room.
bool LargeEnough(int64_t pool_tokens, int64_t least_pool) {
  return pool_tokens == 0 || pool_tokens >= least_pool;
}

bool HasRoom(const DecodeLoad& load, int64_t least_pool) {
  if (!load.ready || load.full || !LargeEnough(load.pool_tokens, least_pool)) {
    return false;
  }
  if (load.pool_tokens == 0) {
    return true;
  }
  // The estimate is coarse (page slack, shared prompt pages); an idle worker decides by itself.
  return Idle(load) || FreeTokens(load) >= static_cast<double>(least_pool);
}

double ShareLeft(const DecodeLoad& load, const PairNeeds& needs) {
  if (load.pool_tokens == 0) {
    return 0.0;
  }
  return (FreeTokens(load) - static_cast<double>(needs.total_tokens)) /
         static_cast<double>(load.pool_tokens);
}

double NearBonus(const Place* prefill, const Place& decode) {
  if (prefill == nullptr) {
    return 0.0;
  }
  if (!decode.host.empty() && decode.host == prefill->host) {
    return kSameHostBonus;
  }
  return !decode.rack.empty() && decode.rack == prefill->rack ? kSameRackBonus : 0.0;
}

// At once, or when it has a free slot.
bool EverTakes(const PrefillLoad& load, const PairNeeds& needs, int64_t least_pool) {
  return load.ready &&
         (LargeEnough(load.pool_tokens, least_pool) || needs.prefer_prefill == load.worker);
}

bool CanTake(const PrefillLoad& load, const PairNeeds& needs, int64_t least_pool) {
  return EverTakes(load, needs, least_pool) &&
         (HasFreeSlot(load) || needs.prefer_prefill == load.worker);
}

// Lower is better, for both roles.
auto PrefillCost(const PrefillLoad& load, const PairNeeds& needs) {
  return std::tuple(needs.prefer_prefill != load.worker,
                    needs.avoid_prefill == load.worker,
                    load.waiting_tokens + load.unreported_tokens,
                    load.unreported_requests);
}

auto DecodeCost(const DecodeLoad& load, const PairNeeds& needs, const Place* prefill) {
  return std::tuple(needs.avoid_decode == load.worker,
                    needs.prefer_decode != load.worker,
                    -ShareLeft(load, needs) - NearBonus(prefill, load.place),
                    load.running_sequences + load.unreported_requests);
}

const PrefillLoad* BestPrefill(std::span<const PrefillLoad> prefills, const PairNeeds& needs) {
  const PrefillLoad* best = nullptr;
  const int64_t least_pool = LeastPool(prefills, needs);
  for (const PrefillLoad& load : prefills) {
    if (CanTake(load, needs, least_pool) &&
        (best == nullptr || PrefillCost(load, needs) < PrefillCost(*best, needs))) {
      best = &load;
    }
  }
  return best;
}

const DecodeLoad* BestDecode(std::span<const DecodeLoad> decodes,
                             const PairNeeds& needs,
                             bool must_prefill,
                             const Place* prefill) {
  const DecodeLoad* best = nullptr;
  const int64_t least_pool = LeastPool(decodes, needs);
  for (const DecodeLoad& load : decodes) {
    if (HasRoom(load, least_pool) && (load.can_prefill || !must_prefill) &&
        (best == nullptr || DecodeCost(load, needs, prefill) < DecodeCost(*best, needs, prefill))) {
      best = &load;
    }
  }
  return best;
}

}  // namespace

std::optional<uint64_t> ChoosePrefill(std::span<const PrefillLoad> prefills,
                                      const PairNeeds& needs) {
  const PrefillLoad* best = BestPrefill(prefills, needs);
  return best == nullptr ? std::nullopt : std::optional<uint64_t>(best->worker);
}

std::optional<uint64_t> ChooseDecode(std::span<const DecodeLoad> decodes,
                                     const PairNeeds& needs,
                                     bool must_prefill,
                                     const Place* prefill) {
  const DecodeLoad* best = BestDecode(decodes, needs, must_prefill, prefill);
  return best == nullptr ? std::nullopt : std::optional<uint64_t>(best->worker);
}

std::optional<WorkerPair> ChoosePair(std::span<const PrefillLoad> prefills,
                                     std::span<const DecodeLoad> decodes,
                                     const PairNeeds& needs) {
  if (std::ranges::none_of(prefills, &PrefillLoad::ready)) {
    const auto decode = ChooseDecode(decodes, needs, /*must_prefill=*/true);
    return decode.has_value() ? std::optional(WorkerPair{.prefill = {}, .decode = *decode})
                              : std::nullopt;
  }
  const PrefillLoad* prefill = BestPrefill(prefills, needs);
  const DecodeLoad* decode = nullptr;
  if (prefill != nullptr) {
    decode = BestDecode(decodes, needs, /*must_prefill=*/false, &prefill->place);
  }
  if (decode == nullptr) {
    return std::nullopt;
  }
  const int64_t least_pool = LeastPool(prefills, needs);
  for (const PrefillLoad& other : prefills) {
    if (!CanTake(other, needs, least_pool) ||
        PrefillCost(other, needs) != PrefillCost(*prefill, needs)) {
      continue;
    }
    const DecodeLoad* near = BestDecode(decodes, needs, /*must_prefill=*/false, &other.place);
    if (DecodeCost(*near, needs, &other.place) < DecodeCost(*decode, needs, &prefill->place)) {
      prefill = &other;
      decode = near;
    }
  }
  return WorkerPair{.prefill = prefill->worker, .decode = decode->worker};
}

bool CanPrefill(std::span<const PrefillLoad> prefills, const PairNeeds& needs) {
  const int64_t least_pool = LeastPool(prefills, needs);
  return std::ranges::any_of(
      prefills, [&](const PrefillLoad& load) { return EverTakes(load, needs, least_pool); });
}

bool CanServe(std::span<const PrefillLoad> prefills,
              std::span<const DecodeLoad> decodes,
              const PairNeeds& needs) {
  const bool any_prefill = std::ranges::any_of(prefills, &PrefillLoad::ready);
  const bool can_prefill = CanPrefill(prefills, needs);
  const int64_t least_pool = LeastPool(decodes, needs);
  return std::ranges::any_of(decodes, [&](const DecodeLoad& load) {
    return load.ready && LargeEnough(load.pool_tokens, least_pool) &&
           (any_prefill ? can_prefill : load.can_prefill);
  });
}

}  // namespace baton::scheduling
