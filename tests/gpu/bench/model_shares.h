// What of a decode step in format `diffkv` page management and policy are.
#pragma once

#include <cstdint>

#include "tests/gpu/bench/model_loaded.h"

namespace baton::model {

// Most sequences of a step.
inline constexpr int32_t kMostShareSequences = 64;

// Steps of four kinds in turn over one pool (15 % of the tokens K8V4, the others K4V2, a 16th of
// the sequences scored in each step): whole ones, in which the policy looks for a victim in a 16th
// of the sequences, ones in which it does not, ones in which new tokens get no pages of their own
// either, and ones that do not even store them. One row for each batch, with the fields
//   sequences, tokens         batch x context
//   ms                        a whole step, mean, until the next tokens are on the host
//   sweep_ms, sweep_share     what the policy adds to it, and that of `ms`
//   pages_ms, pages_share     what page ids of the new tokens add to it
//   append_ms, append_share   and their codes
// or `failed` in place of the times. True when everything was measured. `quick`: the first batch
// alone. The model takes kMostShareSequences rows.
bool MeasureShares(const LoadedModel& loaded, bool quick);

}  // namespace baton::model
