#include "kernels/cpu/isa_table_inl.h"
#include "kernels/cpu/vec_portable.h"

namespace baton::kernels::cpu {
constinit const IsaKernels kPortableKernels = MakeIsaKernels<VecPortable>("cpu-portable");
}  // namespace baton::kernels::cpu
