// Chooses the back end at start-up: ReferenceOps(), CpuOps() or CudaOps().
#pragma once

#include <string_view>

#include "absl/status/statusor.h"

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/ops/op_table.h"
#include "kernels/reference/reference_ops.h"

namespace baton::kernels {

// `device` is "cpu", "cuda" or "reference". kInvalidArgument for another word, kFailedPrecondition
// when the device is not there; both say what is. The table lives as long as the process.
absl::StatusOr<const OpTable*> SelectOps(std::string_view device);

}  // namespace baton::kernels
