// Checks of what a caller asks of a forward pass.
#pragma once

#include "absl/status/status.h"

#include "common/checkpoint/model_config.h"
#include "common/model/forward.h"
#include "common/model/model.h"

namespace baton::model {

// kInvalidArgument naming the field when `batch` is not what forward.h describes: more rows than
// fixed at load time, a token id outside the vocabulary, sequences that do not cover the rows in
// order, rows out of order, a logit row that does not survive, pages of another shape, or `logits`
// of the wrong size. A plain model ignores survivors.
absl::Status ValidateBatch(const ForwardBatch& batch,
                           const checkpoint::ModelConfig& config,
                           const ModelOptions& options,
                           size_t logits_size);

}  // namespace baton::model
