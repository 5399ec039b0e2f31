#include "common/model/model.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/model_config.h"
#include "common/model/load_weights.h"
#include "common/model/simulated_model.h"
#include "common/model/transformer.h"
#include "common/model/weight_loader.h"
#include "common/model/weights.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"

namespace baton::model {
namespace {

// Part of the fingerprint of a simulated model; any number would do.
constexpr uint64_t kSimulated = 0x73696d;

absl::Status CheckOptions(const ModelOptions& options) {
  if (options.max_step_rows < 1 || options.max_logit_rows < 1) {
    return absl::InvalidArgumentError("max_step_rows and max_logit_rows must be at least 1");
  }
  if (options.weight_dtype != kernels::DType::kBF16 &&
      options.weight_dtype != kernels::DType::kF32) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight_dtype must be bf16 or f32, not ",
                     std::string(kernels::DTypeName(options.weight_dtype))));
  }
  return absl::OkStatus();
}

void GrowWorkspace(const checkpoint::ModelConfig& config,
                   const kernels::OpTable& ops,
                   const kernels::ExecContext& exec) {
  const int64_t max_in_features = std::max<int64_t>(
      {config.hidden_size, config.intermediate_size, int64_t{config.num_heads} * config.head_dim});
  const size_t bytes = ops.workspace_bytes(exec.pool->threads(), max_in_features, config.head_dim);
  if (exec.workspace != nullptr && exec.workspace->size() < bytes) {
    *exec.workspace = kernels::Buffer(bytes);
  }
}

// FNV-1a over the bytes of the numbers: weights kept in another dtype give other KV, and a
// simulated model none that a real one could go on with.
uint64_t CombineFingerprint(uint64_t checkpoint, const ModelOptions& options) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  std::vector<uint64_t> words = {checkpoint, static_cast<uint64_t>(options.weight_dtype)};
  if (options.simulation.has_value()) {
    words.push_back(kSimulated);
  }
  for (const uint64_t word : words) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ ((word >> shift) & 0xff)) * 0x100000001b3ULL;
    }
  }
  return hash;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const checkpoint::Checkpoint& checkpoint,
                                                   const kernels::OpTable& ops,
                                                   const kernels::ExecContext& exec,
                                                   const ModelOptions& options) {
  BATON_RETURN_IF_ERROR(CheckOptions(options));
  BATON_RETURN_IF_ERROR(kernels::CheckComplete(ops));
  const checkpoint::ModelConfig& config = checkpoint.config();
  const uint64_t fingerprint = CombineFingerprint(checkpoint.fingerprint(), options);
  GrowWorkspace(config, ops, exec);
  if (options.simulation.has_value()) {
    return SimulatedModel::Create({.config = config,
                                   .fingerprint = fingerprint,
                                   .ops = &ops,
                                   .exec = exec,
                                   .options = options,
                                   .simulation = *options.simulation,
                                   .clock = &Clock::Real()});
  }
  const WeightLoader loader(checkpoint, ops, exec, options.weight_dtype);
  BATON_ASSIGN_OR_RETURN(ModelWeights weights, LoadWeights(config, loader, options.weight_dtype));
  return TransformerModel::Create(
      {.config = config, .fingerprint = fingerprint, .ops = &ops, .exec = exec, .options = options},
      std::move(weights));
}

}  // namespace baton::model
