// The part of a worker that computes: back end, threads and model.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "common/kv/calibration/calibration_file.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/model/model.h"
#include "common/worker/worker_options.h"
#include "kernels/backend.h"
#include "proto/baton/kv/v1/manifest.pb.h"

namespace baton::worker {

// Must outlive model and engine. Everything but the model's constants belongs to the executor
// thread.
struct Compute {
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<model::Model> model;  // taken by the engine
  kv::v1::KvLayout layout;              // of this worker's KV pages
  kv::CalibratedModel identity;         // what a calibration of the model is bound to
  std::shared_ptr<const kv::KvCalibration> calibration;  // null without one
};

// Chooses the back end, loads the model and reads its calibration. Errors name flag, file, tensor
// or field; kFailedPrecondition for a calibration of another model.
absl::StatusOr<std::unique_ptr<Compute>> LoadCompute(const WorkerOptions& options);

}  // namespace baton::worker
