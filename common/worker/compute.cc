#include "common/worker/compute.h"

#include <optional>

#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint.h"
#include "common/kv/manifest/layout.h"
#include "kernels/kv_format/dense.h"
#include "kernels/select.h"

namespace baton::worker {
namespace {

absl::StatusOr<std::unique_ptr<checkpoint::Checkpoint>> OpenCheckpoint(
    const WorkerOptions& options) {
  const checkpoint::CheckpointOptions checkpoint_options = {
      .random_weights_seed =
          options.random_weights ? std::optional<uint64_t>(options.seed) : std::nullopt};
  BATON_ASSIGN_OR_RETURN(auto checkpoint,
                         checkpoint::Checkpoint::Open(options.model_dir, checkpoint_options));
  for (const std::string& warning : checkpoint->config().warnings) {
    spdlog::warn("model {}: {}", options.model_dir, warning);
  }
  return checkpoint;
}

kv::v1::KvLayout LayoutOf(const model::Model& model, const engine::EngineOptions& options) {
  const model::KvShape shape = model.kv_shape();
  const kernels::DensePageLayout page = {.page_tokens = options.page_tokens,
                                         .kv_heads = shape.kv_heads,
                                         .head_dim = shape.head_dim,
                                         .dtype = options.page_dtype};
  return kv::DenseLayout(model.fingerprint(), shape.layers, page);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Compute>> LoadCompute(const WorkerOptions& options) {
  const absl::Time start = absl::Now();
  auto compute = std::make_unique<Compute>(options.threads);
  BATON_ASSIGN_OR_RETURN(compute->ops, kernels::SelectOps(options.device));
  BATON_ASSIGN_OR_RETURN(const auto checkpoint, OpenCheckpoint(options));
  const model::ModelOptions model_options = {.max_step_rows = options.engine.step_token_budget,
                                             .max_logit_rows = options.engine.max_running_sequences,
                                             .weight_dtype = options.compute};
  BATON_ASSIGN_OR_RETURN(
      compute->model, model::Model::Load(*checkpoint, *compute->ops, compute->exec, model_options));
  compute->layout = LayoutOf(*compute->model, options.engine);
  spdlog::info("model loaded dir={} device={} threads={} seconds={:.2f}",
               options.model_dir,
               options.device,
               options.threads,
               absl::ToDoubleSeconds(absl::Now() - start));
  return compute;
}

}  // namespace baton::worker
