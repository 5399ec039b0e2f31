// Ops of KV format `shadowkv` behind the manners of a device.
#pragma once

#include "kernels/core/dtype.h"
#include "kernels/ops/op_table.h"

namespace baton::kernels {

// Beside pointers, what a device is told of sequences beforehand is held against them: kInternal,
// naming the bound, for one that does not hold. Scratch memory is the double's own.
template <DType kDType>
void SetShadowKvOps(OpTable& table);

}  // namespace baton::kernels
