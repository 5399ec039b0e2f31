#include "services/lab/flags.h"

#include <algorithm>
#include <thread>

#include "absl/flags/flag.h"

#include "common/base/status_macros.h"
#include "common/config/check_flag.h"

ABSL_FLAG(std::string, model, "", "Model directory in HuggingFace layout.");
ABSL_FLAG(std::string, out, "", "File to write.");
ABSL_FLAG(std::string,
          compute,
          "bf16",
          "bf16: weights and KV pages are bf16; fp32: both fp32. Arithmetic is fp32 either way.");
ABSL_FLAG(std::string, device, "cpu", "Back end: cpu or reference (cuda: in a build with it).");
ABSL_FLAG(int32_t, threads, 0, "Compute threads; 0 means one per core.");
ABSL_FLAG(bool,
          random_weights,
          false,
          "Read only config.json; weights are a pure function of --seed and tensor name.");
ABSL_FLAG(std::string,
          kv_calibration,
          "",
          "eval: calibration file of the model (baton-lab calibrate); empty: none.");
ABSL_FLAG(uint64_t, seed, 0, "Seed of --random-weights.");

namespace baton::lab {

absl::StatusOr<std::unique_ptr<checkpoint::Checkpoint>> OpenCheckpoint() {
  const std::string directory = absl::GetFlag(FLAGS_model);
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("model", directory));
  checkpoint::CheckpointOptions options;
  if (absl::GetFlag(FLAGS_random_weights)) {
    options.random_weights_seed = absl::GetFlag(FLAGS_seed);
  }
  return checkpoint::Checkpoint::Open(directory, options);
}

absl::StatusOr<kernels::DType> ComputeDType() {
  const std::string compute = absl::GetFlag(FLAGS_compute);
  BATON_RETURN_IF_ERROR(config::CheckFlagChoice("compute", compute, {"bf16", "fp32"}));
  return compute == "fp32" ? kernels::DType::kF32 : kernels::DType::kBF16;
}

absl::StatusOr<int> ComputeThreads() {
  const int32_t threads = absl::GetFlag(FLAGS_threads);
  BATON_RETURN_IF_ERROR(config::CheckFlagRange("threads", threads, 0, 1024));
  const auto cores = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  return threads == 0 ? cores : threads;
}

}  // namespace baton::lab
