// The KV of a SwiftKV model's upper layers from the hidden states of a prompt.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/step_kv.h"
#include "common/model/model.h"

namespace baton::engine {

// Makes keys and values of the prompt tokens [token_begin, token_begin + token_count) in every
// upper layer and writes them to `kv`, a step of that one sequence. Results do not depend on how a
// prompt is cut into calls.
absl::Status ExpandHidden(model::Model& model,
                          const kv::HiddenState& hidden,
                          int64_t token_begin,
                          int32_t token_count,
                          kv::StepKv& kv);

}  // namespace baton::engine
