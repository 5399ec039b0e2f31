// The policies that a calibration tries, stage by stage (diffkv.md 6 and its analogue for
// shadowkv).
#pragma once

#include <cstdint>
#include <vector>

#include "common/kv/codec/policy_params.h"

namespace baton::lab {

// First stage of diffkv: every tier pair and alpha_high of the grid, nothing pruned.
std::vector<kv::DiffKvPolicy> DiffKvTiersAndAlphaHigh();
// Second: alpha_low on the grid, up to alpha_high.
std::vector<kv::DiffKvPolicy> DiffKvAlphaLow(const kv::DiffKvPolicy& chosen);
// Third: shorter windows.
std::vector<kv::DiffKvPolicy> DiffKvWindow(const kv::DiffKvPolicy& chosen);

// First stage of shadowkv: what chunks are selected by, and their size, with keys of full rank.
// `key_width` is kv_heads x head_dim.
std::vector<kv::ShadowKvPolicy> ShadowKvSelectors(int64_t key_width);
// Second: the budget.
std::vector<kv::ShadowKvPolicy> ShadowKvBudgets(const kv::ShadowKvPolicy& chosen);
// Third: rank and type of the keys' factors.
std::vector<kv::ShadowKvPolicy> ShadowKvRanks(const kv::ShadowKvPolicy& chosen, int64_t key_width);
// Fourth: narrower values.
std::vector<kv::ShadowKvPolicy> ShadowKvValues(const kv::ShadowKvPolicy& chosen);

}  // namespace baton::lab
