// The CPU back end: one op table per instruction set, chosen at run time.
#pragma once

#include "kernels/ops/op_table.h"

namespace baton::kernels {

enum class CpuIsa {
  kPortable,  // plain C++
  kAvx2,      // AVX2 and FMA
  kAvx512,    // AVX-512 F, BW, DQ and VL
};

// The table of one instruction set, or null when this machine (or this build) lacks it.
const OpTable* CpuOpsFor(CpuIsa isa);

// The table of the widest instruction set of this machine.
const OpTable& CpuOps();

}  // namespace baton::kernels
