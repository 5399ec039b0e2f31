// The CUDA back end.
#pragma once

#include "kernels/ops/op_table.h"

namespace baton::kernels {

// The CUDA back end, or null in a build without CUDA or on a machine without a device.
const OpTable* CudaOps();

}  // namespace baton::kernels
