// A copy to shared memory that the second-level cache treats by a policy (ptx.cuh), beside those of
// ptx_tile.cuh. Semantics: PTX ISA 9.0, section 9.7.9.25.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace baton::kernels::cuda {

// Starts a copy of 16 bytes, addresses aligned to that; it is part of the thread's next group.
__device__ inline void CopyAsync16ByPolicy(void* shared, const void* global, uint64_t policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
      "l"(__cvta_generic_to_global(global)),
      "l"(policy)
      : "memory");
}

}  // namespace baton::kernels::cuda
