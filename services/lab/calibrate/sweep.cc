#include "services/lab/calibrate/sweep.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/kv/codec/policy_params.h"

namespace baton::lab {
namespace {

using Selection = kv::ShadowKvPolicy::Selection;

// Of the grid of the released code (diffkv.md 6), coarser; 0: all high, the reference.
constexpr std::array<float, 9> kAlphaHigh = {
    0.0f, 0.25f, 0.5f, 1.0f, 1.25f, 1.5f, 2.0f, 3.0f, 5.0f};
// Five equal steps in [0, 0.1].
constexpr std::array<float, 5> kAlphaLow = {0.02f, 0.04f, 0.06f, 0.08f, 0.1f};
constexpr std::array<int32_t, 2> kWindows = {32, 16};
constexpr std::array<std::pair<kv::KvTier, kv::KvTier>, 2> kTiers = {
    {{kv::KvTier::kK8V4, kv::KvTier::kK4V2}, {kv::KvTier::kK4V4, kv::KvTier::kK4V2}}};

// Selectors with the exact chunks that suit them: the mean and the bounds need outliers, 2-bit keys
// do not (shadowkv.md 9.2). The local window is 64 tokens or the nearest that the grammar has.
struct SelectorPoint {
  int32_t chunk_tokens;
  Selection selection;
  int32_t outlier_chunks;
  int32_t local_chunks;
};
constexpr std::array<SelectorPoint, 6> kSelectors = {{
    {8, Selection::kMean, 48, 8},
    {8, Selection::kBounds, 48, 8},
    {4, Selection::kMean, 48, 16},
    {2, Selection::kMean, 4, 16},
    {2, Selection::kQ2, 0, 16},
    {1, Selection::kQ2, 0, 32},
}};
constexpr std::array<double, 4> kBudgets = {0.03125, 0.0625, 0.09, 0.125};
// In 32nds of the keys' width; 5/32 is the paper's 160 of 1024.
constexpr std::array<int64_t, 6> kRanks32 = {5, 8, 12, 16, 24, 32};
constexpr int64_t kMaxRank = 1024;

int32_t Rank(int64_t key_width, int64_t share32) {
  return static_cast<int32_t>(std::clamp<int64_t>(key_width * share32 / 32, 1, kMaxRank));
}

}  // namespace

std::vector<kv::DiffKvPolicy> DiffKvTiersAndAlphaHigh() {
  std::vector<kv::DiffKvPolicy> policies;
  for (const auto& [high, low] : kTiers) {
    for (const float alpha_high : kAlphaHigh) {
      kv::DiffKvPolicy policy;
      policy.high = high;
      policy.low = low;
      policy.alpha_high = alpha_high;
      policy.alpha_low = 0.0f;
      policies.push_back(policy);
    }
  }
  return policies;
}

std::vector<kv::DiffKvPolicy> DiffKvAlphaLow(const kv::DiffKvPolicy& chosen) {
  std::vector<kv::DiffKvPolicy> policies;
  for (const float alpha_low : kAlphaLow) {
    if (alpha_low <= chosen.alpha_high) {
      policies.push_back(chosen);
      policies.back().alpha_low = alpha_low;
    }
  }
  return policies;
}

std::vector<kv::DiffKvPolicy> DiffKvWindow(const kv::DiffKvPolicy& chosen) {
  std::vector<kv::DiffKvPolicy> policies;
  for (const int32_t window : kWindows) {
    policies.push_back(chosen);
    policies.back().window = window;
  }
  return policies;
}

std::vector<kv::ShadowKvPolicy> ShadowKvSelectors(int64_t key_width) {
  std::vector<kv::ShadowKvPolicy> policies;
  for (const SelectorPoint& point : kSelectors) {
    kv::ShadowKvPolicy policy;
    policy.rank = Rank(key_width, 32);
    policy.chunk_tokens = point.chunk_tokens;
    policy.selection = point.selection;
    policy.outlier_chunks = point.outlier_chunks;
    policy.local_chunks = point.local_chunks;
    policies.push_back(policy);
  }
  return policies;
}

std::vector<kv::ShadowKvPolicy> ShadowKvBudgets(const kv::ShadowKvPolicy& chosen) {
  std::vector<kv::ShadowKvPolicy> policies;
  for (const double fraction : kBudgets) {
    policies.push_back(chosen);
    policies.back().budget = {.fraction = fraction};
  }
  return policies;
}

std::vector<kv::ShadowKvPolicy> ShadowKvRanks(const kv::ShadowKvPolicy& chosen, int64_t key_width) {
  std::vector<kv::ShadowKvPolicy> policies;
  for (const int64_t share : kRanks32) {
    for (const auto factor :
         {kv::ShadowKvPolicy::FactorType::kBF16, kv::ShadowKvPolicy::FactorType::kInt8}) {
      policies.push_back(chosen);
      policies.back().rank = Rank(key_width, share);
      policies.back().factor = factor;
    }
  }
  return policies;
}

std::vector<kv::ShadowKvPolicy> ShadowKvValues(const kv::ShadowKvPolicy& chosen) {
  std::vector<kv::ShadowKvPolicy> policies = {chosen};
  policies.back().values = kv::ShadowKvPolicy::ValueType::kV2;
  return policies;
}

}  // namespace baton::lab
