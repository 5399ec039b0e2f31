// The reference back end.
#pragma once

#include "kernels/ops/op_table.h"

namespace baton::kernels {

// The plain fp32 loops every other back end is checked against. Single-threaded: it uses neither
// the pool nor the workspace of the context.
const OpTable& ReferenceOps();

}  // namespace baton::kernels
