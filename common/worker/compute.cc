#include "common/worker/compute.h"

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/read_file.h"
#include "common/engine/engine.h"
#include "common/kv/calibration/calibration_file.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/manifest/layout.h"
#include "common/model/forward.h"
#include "common/model/model.h"
#include "common/worker/worker_options.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda_session.h"
#include "kernels/kv_format/dense.h"

namespace baton::worker {
namespace {

absl::StatusOr<std::unique_ptr<checkpoint::Checkpoint>> OpenCheckpoint(
    const WorkerOptions& options) {
  const checkpoint::CheckpointOptions checkpoint_options = {
      .random_weights_seed = options.random_weights || options.simulation.has_value()
                                 ? std::optional<uint64_t>(options.seed)
                                 : std::nullopt};
  BATON_ASSIGN_OR_RETURN(auto checkpoint,
                         checkpoint::Checkpoint::Open(options.model_dir, checkpoint_options));
  for (const std::string& warning : checkpoint->config().warnings) {
    spdlog::warn("model {}: {}", options.model_dir, warning);
  }
  return checkpoint;
}

// Null when the options name no file.
absl::StatusOr<std::shared_ptr<const kv::KvCalibration>> ReadCalibration(
    const std::string& path, const kv::CalibratedModel& model) {
  if (path.empty()) {
    return std::shared_ptr<const kv::KvCalibration>();
  }
  const std::string context = absl::StrCat("flag --kv_calibration, file ", path);
  const auto text = checkpoint::ReadFile(path, kv::kMaxCalibrationBytes);
  BATON_RETURN_IF_ERROR(WithContext(text.status(), context));
  const auto calibration = kv::ParseCalibration(*text, model);
  BATON_RETURN_IF_ERROR(WithContext(calibration.status(), context));
  return std::make_shared<const kv::KvCalibration>(calibration->calibration);
}

// Ops do without what is missing, in several times the time or not at all.
void LoadLibraries(const kernels::Backend& backend) {
  for (const kernels::cuda::FoundLibrary& library : backend.LoadLibraries()) {
    if (library.description.ok()) {
      spdlog::info("{} {}", library.name, *library.description);
    } else {
      spdlog::warn("{}: {}", library.name, library.description.status().ToString());
    }
  }
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
  auto compute = std::make_unique<Compute>();
  BATON_ASSIGN_OR_RETURN(compute->backend, kernels::Backend::Open(options.device, options.threads));
  LoadLibraries(*compute->backend);
  BATON_ASSIGN_OR_RETURN(const auto checkpoint, OpenCheckpoint(options));
  compute->identity = {.fingerprint = checkpoint->fingerprint(),
                       .layers = checkpoint->config().num_kv_cache_layers()};
  BATON_ASSIGN_OR_RETURN(compute->calibration,
                         ReadCalibration(options.kv_calibration, compute->identity));
  const model::ModelOptions model_options = {.max_step_rows = options.engine.step_token_budget,
                                             .max_logit_rows = options.engine.max_running_sequences,
                                             .weight_dtype = options.compute,
                                             .simulation = options.simulation};
  const kernels::Backend& backend = *compute->backend;
  BATON_ASSIGN_OR_RETURN(
      compute->model,
      model::Model::Load(*checkpoint, backend.ops(), backend.exec(), model_options));
  compute->layout = LayoutOf(*compute->model, options.engine);
  if (options.simulation.has_value()) {
    spdlog::warn("flag --simulate: no model is computed, tokens are random");
  }
  spdlog::info("model loaded dir={} device={} threads={} seconds={:.2f}",
               options.model_dir,
               options.device,
               options.threads,
               absl::ToDoubleSeconds(absl::Now() - start));
  return compute;
}

}  // namespace baton::worker
