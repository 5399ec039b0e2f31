// A device on the CPU: what runs above ops can be tested against one where none is.
#pragma once

#include "kernels/core/dtype.h"
#include "kernels/ops/op_table.h"

namespace baton::kernels {

// The CPU's ops behind the manners of a device (docs/adr/0010-ops-of-a-device.md): a step is run
// whole, activations are bf16, or fp32 to compare bit by bit with the CPU, and everything that an
// op is pointed to has to be in GuardedMemory, down to the pointers in arrays, else it is refused
// with kInternal naming op and pointer. Pages are not given back (diffkv_release_pages). Ops that
// code a layer of shadowkv may be called on side queues (deferred_queues.h).
const OpTable& DeviceDoubleOps(DType activations);

}  // namespace baton::kernels
