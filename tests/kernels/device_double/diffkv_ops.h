// Ops of KV format `diffkv` behind the manners of a device.
#pragma once

#include "kernels/core/dtype.h"
#include "kernels/ops/op_table.h"

namespace baton::kernels {

// All that an engine calls for sequences that it prefills and decodes itself.
template <DType kDType>
void SetDiffKvOps(OpTable& table);

}  // namespace baton::kernels
