// The CUDA back end.
#pragma once

#include "kernels/ops/op_table.h"

namespace baton::kernels {

// The CUDA back end, or null in a build without CUDA or on a machine without a device that it has
// code for. Ops that are not written yet have no entry.
const OpTable* CudaOps();

}  // namespace baton::kernels
