// Prompts through a prefill worker's engine, by KV format: from token ids on the host to the first
// token's on the host. What it ships is taken on the device and forgotten.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/model/model.h"
#include "kernels/backend.h"

namespace baton::model {

// Sequences that a worker's engine runs at once here: those of the most prompts of one row.
inline constexpr int32_t kMostFirstTokenPrompts = 16;

// Seconds by policy, and prompts and tokens of each.
using FirstTokenSeconds = std::map<std::pair<std::string, std::pair<int32_t, int32_t>>, double>;

struct FirstTokenOptions {
  int32_t chunk_tokens = 0;  // most tokens of a prompt in a step
  bool quick = false;        // the shapes that take least
  int32_t tokens = 0;        // only prompts of so many; 0: of any
};

// One row a shape and policy; the policies of a shape take turns, each after a pause, as requests
// come to an idle worker:
//   bench, model, policy        "first_token"
//   prompts, tokens             submitted together, and of each
//   chunk                       most tokens of a prompt in a step
//   ms                          from Submit until the last prompt's first token is delivered,
//                               coding included as far as the token waits for it; median
//   to_dense                    that over the policy `dense` of the same shape, where it has one
//   coded_after_ms              from the token until the device has nothing left to do, which is
//                               when the last byte is coded; median
//   tokens_per_s                of the prompts
//   tflop_per_s, share_of_756   operations of the forward pass that are really done (ModelCost)
//   speedup                     of a model that is not the plain one over that with the same policy
// and of a shape that could not be measured `failed` with the reason instead of what follows chunk.
// Takes the model, whose steps have room for a chunk. `plain` is filled by the plain model, whose
// turn is first. False if one failed.
bool MeasureFirstTokens(const kernels::Backend& backend,
                        const std::string& name,
                        std::unique_ptr<Model> model,
                        const FirstTokenOptions& options,
                        FirstTokenSeconds& plain);

}  // namespace baton::model
