// Which tensors a configuration needs.
#pragma once

#include "absl/status/statusor.h"

#include "common/checkpoint/model_config.h"
#include "common/model/weight_loader.h"
#include "common/model/weights.h"
#include "kernels/core/dtype.h"

namespace baton::model {

// Loads every weight of `config` through `loader` (swiftkv.md 2.2, 3.2). What a checkpoint holds
// besides is ignored: rotary inv_freq, original q/k/v projections above the full layers of a
// SwiftKV model, and lm_head of a model with tied embeddings.
absl::StatusOr<ModelWeights> LoadWeights(const checkpoint::ModelConfig& config,
                                         const WeightLoader& loader,
                                         kernels::DType dtype);

}  // namespace baton::model
