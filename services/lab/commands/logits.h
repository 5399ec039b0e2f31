// baton-lab logits: reference output of a model for given token ids.
#pragma once

#include "absl/status/status.h"

namespace baton::lab {

// Reads --input-ids (a JSON array of token ids), writes --out (safetensors): `logits` [T, vocab]
// fp32 for every position, every token through every layer, and with --greedy N also `greedy`
// int64 [N], the most likely continuation with stop ids ignored.
absl::Status RunLogits();

}  // namespace baton::lab
