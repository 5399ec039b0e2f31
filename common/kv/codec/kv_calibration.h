// What was found out about one model's KV: the parameters that its policies take by default, and
// how its layers differ.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/kv/codec/kv_policy.h"

namespace baton::kv {

// The lowest tier that a token of a layer may be in under `diffkv` (diffkv.md 6: layers that do not
// stand low precision get a floor). kLow: in no tier, that is pruned, is below it.
enum class KvFloor : uint8_t { kNone, kLow, kHigh };

// "none", "low", "high".
std::string_view KvFloorName(KvFloor floor);

// What `auto` becomes; the numbers are those of a server without a calibration.
struct KvAutoRule {
  int64_t exact_below_tokens = 1024;                 // shorter prompts stay exact
  KvChoice choice = KvChoice::kTierBalanced;         // others get this tier,
  KvChoice under_pressure = KvChoice::kTierEconomy;  // or this one when dense pages run short

  bool operator==(const KvAutoRule&) const = default;
};

// Of one model. Lists are empty or have an element for each stored layer. Immutable once codecs
// have it.
struct KvCalibration {
  // By tier: high, balanced, economy.
  using Tiers = std::array<KvFormatPolicy, 3>;

  KvPolicyDefaults defaults;
  std::optional<Tiers> tiers;  // nothing: those of a server without a calibration
  KvAutoRule automatic;
  std::vector<KvFloor> diffkv_floor;
  // Weights of the layers' token budgets under `shadowkv`, mean 1.
  std::vector<float> shadowkv_budget;

  // The element of a layer, or what stands for an empty list.
  KvFloor floor(int32_t kv_layer) const {
    return diffkv_floor.empty() ? KvFloor::kNone : diffkv_floor[static_cast<size_t>(kv_layer)];
  }
  float budget_weight(int32_t kv_layer) const {
    return shadowkv_budget.empty() ? 1.0f : shadowkv_budget[static_cast<size_t>(kv_layer)];
  }
  bool operator==(const KvCalibration&) const = default;
};

// A budget of `tokens` in a layer of this weight: rounded to the nearest, at least 1 token.
int32_t ScaledBudget(int32_t tokens, float weight);

// What sides of a hand-off compare of their floors: 0 when no layer has one, else FNV-1a (64 bits)
// over the list.
uint64_t FloorDigest(std::span<const KvFloor> floors);

}  // namespace baton::kv
