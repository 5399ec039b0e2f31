// Prompts, from token ids on the host to logits on the host.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "tests/gpu/bench/model_subject.h"

namespace baton::model {

// Rows of the largest step, which a longer prompt takes several of.
inline constexpr int32_t kPrefillStepRows = 8192;

// Seconds by sequences and tokens of each.
using PrefillSeconds = std::map<std::pair<int32_t, int32_t>, double>;

// One row a shape:
//   bench, model                "prefill"
//   sequences, tokens           packed, and of each
//   ms                          of all prompts until the logits of their last tokens are on the
//                               host; median of the repeats after one that warms up
//   tokens_per_s
//   tflop_per_s, share_of_756   10^12 multiplications and additions a second that are really done
//                               (ModelCost); of 756 of them
//   speedup                     of a model that is not the plain one over that
// and of a shape that could not be measured `failed` with the reason instead of what follows
// tokens. `plain` is filled by the plain model, whose turn is first. False if one failed.
bool MeasurePrefill(const ModelSubject& subject, bool quick, PrefillSeconds& plain);

}  // namespace baton::model
