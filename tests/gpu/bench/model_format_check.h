// Whether decode over other formats than dense pages gives a model's logits.
#pragma once

#include "tests/gpu/bench/model_loaded.h"

namespace baton::model {

// Prompts whole over dense pages, against the same tokens one by one over a pool that is empty at
// first and keeps them as well as it can: `diffkv` in its high tier, of K8V8 here; `shadowkv` as
// exact tokens, so few that none are coded and nothing is selected. That tells whether rows,
// positions, layers and strides are where the ops look for them; what codes and selection do to a
// result is for the benchmarks of ops (attention_bench.cc), which compare it with the CPU's. One
// row a format:
//   bench, model, format   "check"
//   sequences, tokens      packed, and of each
//   error                  the largest difference of two logits, relative to the largest logit
// and of one that failed `failed` with the reason, perhaps instead of the error. False if one
// failed. Only on a device.
bool CheckFormats(const LoadedModel& loaded);

}  // namespace baton::model
