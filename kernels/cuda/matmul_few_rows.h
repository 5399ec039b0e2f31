// Matrix products of the few rows of a small decode step, as fast as the weights can be read.
#pragma once

#include "absl/status/status.h"

#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/params.h"

namespace baton::kernels::cuda {

// Whether MatmulFewRows takes a valid call with everything that goes with it: up to eight rows,
// everything aligned to 16 bytes, and normalised rows that fit into a block's shared memory.
bool HasFewRows(const DeviceQueue& queue, const MatmulParams& params);

// The op of a call that HasFewRows, in one kernel. Sums are fp32 in a fixed order and rounded once,
// after bias and what `out` holds are added; a row's bits do not depend on the other rows.
absl::Status MatmulFewRows(const DeviceQueue& queue, const MatmulParams& params);

}  // namespace baton::kernels::cuda
