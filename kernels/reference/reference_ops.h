// The reference back end.
#pragma once

#include "kernels/ops/op_table.h"

namespace baton::kernels {

// The plain fp32 loops every other back end is checked against. Single-threaded: it does
// not use the context's pool, and its workspace only in the shadowkv ops.
const OpTable& ReferenceOps();

}  // namespace baton::kernels
