// The decisions of format `diffkv`, shared by the back ends: which class a prompt token gets and
// what a generation step does with a head (DiffKV section 4 and Algorithm 1; the decision table is
// that of the released code). All arithmetic is fp32 with true divisions, so that every back end
// decides alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/observed_positions.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels {

// Prompt token `position` of `tokens`, whose later queries gave it `score` in sum.
constexpr DiffKvClass ClassifyPromptToken(const DiffKvPolicy& policy,
                                          float score,
                                          int64_t position,
                                          int64_t tokens) {
  const bool windowed = policy.scoring == DiffKvScoring::kLastWindow;
  const int64_t later = tokens - 1 - position;
  const int64_t queries = windowed ? std::min<int64_t>(later + 1, kDiffKvWindowQueries) : later;
  // The last token has no later one to be scored by.
  if (later < policy.window || position < policy.sinks || queries == 0) {
    return DiffKvClass::kHigh;
  }
  const float mean = score / static_cast<float>(queries);
  const auto base = static_cast<float>(policy.base == DiffKvBase::kLength ? tokens : position + 1);
  if (mean < policy.alpha_low / base) return DiffKvClass::kPruned;
  return mean < policy.alpha_high / base ? DiffKvClass::kLow : DiffKvClass::kHigh;
}

// Prompt positions whose queries score nothing: all but the last kDiffKvWindowQueries of the tokens
// [first_token, tokens) that are computed at once.
constexpr UnobservedRange DiffKvUnobserved(int32_t first_token, int32_t tokens) {
  return {.begin = first_token, .end = std::max(first_token, tokens - kDiffKvWindowQueries)};
}

// A stored token's age at `position`: the number of queries in its score, which are those of the
// positions [token_position, position) that were observed.
constexpr int32_t DiffKvAge(const DiffKvPolicy& policy, int32_t token_position, int32_t position) {
  return ObservedPositions(policy.unobserved, policy.unobserved_count, token_position, position);
}

// A stored token of that age may be demoted or pruned at `position` once it has left the window.
constexpr bool DiffKvCompetes(const DiffKvPolicy& policy,
                              int32_t token_position,
                              int32_t position,
                              int32_t age) {
  return age > 0 && token_position <= position - policy.window && token_position >= policy.sinks;
}

// The least significant competing token of a tier: the lowest mean score, the lowest slot on a tie.
struct DiffKvVictim {
  float mean = std::numeric_limits<float>::infinity();
  int32_t slot = -1;  // -1: no token competes
};

// What a head looks like to the policy before a new token.
struct DiffKvHeadState {
  int32_t counts[kDiffKvTiers] = {};
  DiffKvVictim victims[kDiffKvTiers] = {};
  DiffKvVictim candidate = {};  // the token that leaves the window in this step; Algorithm 1 only
};

// The new token goes behind the other high tokens, and nothing else changes.
constexpr DiffKvAction AppendToDiffKv(int32_t high_count) {
  return {.high_slot = high_count, .appended = true};
}

namespace diffkv_internal {

constexpr DiffKvAction Overwrite(int32_t high_slot) { return {.high_slot = high_slot}; }
// The new token takes `high_slot`, whose token moves to the low tier: over a low victim whose mean
// is below `prune`, else behind the others.
constexpr DiffKvAction Demote(const DiffKvHeadState& head, int32_t high_slot, float prune) {
  const DiffKvVictim& low = head.victims[kDiffKvLow];
  if (low.mean < prune) {
    return {.high_slot = high_slot, .demoted_to = low.slot};
  }
  return {.high_slot = high_slot, .demoted_to = head.counts[kDiffKvLow], .low_appended = true};
}

constexpr DiffKvAction DecideRelease(const DiffKvPolicy& policy,
                                     const DiffKvHeadState& head,
                                     float demote,
                                     float prune) {
  const DiffKvVictim& high = head.victims[kDiffKvHigh];
  if (head.counts[kDiffKvHigh] + head.counts[kDiffKvLow] + 1 <= policy.window) {
    return AppendToDiffKv(head.counts[kDiffKvHigh]);
  }
  if (high.mean < prune && high.mean < head.victims[kDiffKvLow].mean) {
    return Overwrite(high.slot);
  }
  return high.mean < demote ? Demote(head, high.slot, prune)
                            : AppendToDiffKv(head.counts[kDiffKvHigh]);
}

// Window tokens live in high slots, so a candidate that stays high stays where it is. The new token
// takes the slot that the candidate or the victim leaves.
constexpr DiffKvAction DecidePaper(const DiffKvHeadState& head, float demote, float prune) {
  const DiffKvVictim& candidate = head.candidate;
  if (candidate.slot < 0) {
    return AppendToDiffKv(head.counts[kDiffKvHigh]);
  }
  if (candidate.mean >= demote) {
    const DiffKvVictim& high = head.victims[kDiffKvHigh];
    if (high.mean < prune) return Overwrite(high.slot);
    // A demotion adds a low token; lines 8 and 9 of the algorithm look for no low victim.
    constexpr float kNoPruning = -std::numeric_limits<float>::infinity();
    return high.mean < demote ? Demote(head, high.slot, kNoPruning)
                              : AppendToDiffKv(head.counts[kDiffKvHigh]);
  }
  return candidate.mean >= prune ? Demote(head, candidate.slot, prune) : Overwrite(candidate.slot);
}

}  // namespace diffkv_internal

// What the head does with the new token at `position`; the demoted token is the one that held
// action.high_slot. Thresholds are alpha / position.
constexpr DiffKvAction DecideDiffKv(const DiffKvPolicy& policy,
                                    int32_t position,
                                    const DiffKvHeadState& head) {
  if (position <= 0) {
    return AppendToDiffKv(head.counts[kDiffKvHigh]);
  }
  const float demote = policy.alpha_high / static_cast<float>(position);
  const float prune = policy.alpha_low / static_cast<float>(position);
  return policy.rule == DiffKvRule::kRelease
             ? diffkv_internal::DecideRelease(policy, head, demote, prune)
             : diffkv_internal::DecidePaper(head, demote, prune);
}

}  // namespace baton::kernels
