#include "kernels/cpu/isa_table_inl.h"
#include "kernels/cpu/vec_avx2.h"

namespace baton::kernels::cpu {
constinit const IsaKernels kAvx2Kernels = MakeIsaKernels<VecAvx2>("cpu-avx2");
}  // namespace baton::kernels::cpu
