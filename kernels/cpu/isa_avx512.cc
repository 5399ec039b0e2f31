#include "kernels/cpu/isa_table_inl.h"
#include "kernels/cpu/vec_avx512.h"

namespace baton::kernels::cpu {
constinit const IsaKernels kAvx512Kernels = MakeIsaKernels<VecAvx512>("cpu-avx512");
}  // namespace baton::kernels::cpu
