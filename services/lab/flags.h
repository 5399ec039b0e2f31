// Flags that several commands of baton-lab share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/flags/declare.h"
#include "absl/status/statusor.h"

#include "common/checkpoint/checkpoint.h"

ABSL_DECLARE_FLAG(std::string, model);
ABSL_DECLARE_FLAG(std::string, out);
ABSL_DECLARE_FLAG(std::string, compute);
ABSL_DECLARE_FLAG(std::string, device);
ABSL_DECLARE_FLAG(int32_t, threads);
ABSL_DECLARE_FLAG(bool, random_weights);
ABSL_DECLARE_FLAG(uint64_t, seed);
ABSL_DECLARE_FLAG(std::string, kv_calibration);

namespace baton::lab {

// Opens --model, with --random-weights when given. kInvalidArgument when --model is missing.
absl::StatusOr<std::unique_ptr<checkpoint::Checkpoint>> OpenCheckpoint();

// dtype of weights and KV pages that --compute asks for.
absl::StatusOr<kernels::DType> ComputeDType();

// --threads, checked; 0 means one per core.
absl::StatusOr<int> ComputeThreads();

}  // namespace baton::lab
