#include "tests/kernels/counting/counting_ops.h"

#include "kernels/cpu/cpu_ops.h"

namespace baton::kernels {

const OpTable& CountingOps() { return *CpuOpsFor(CpuIsa::kPortable); }

}  // namespace baton::kernels
