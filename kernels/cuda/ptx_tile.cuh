// Instructions that bring tiles of 16-bit elements to shared memory while a block computes, and
// from there to the operands of matrix instructions. Semantics: PTX ISA 9.0, sections 9.7.9.25 and
// 9.7.14.5.15.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace baton::kernels::cuda {

// Starts a copy of 16 bytes to shared memory, addresses aligned to that. Of `bytes` (0 or 16) that
// are read; zeros take the place of the rest, and `global` may then be anything.
__device__ inline void CopyAsync16(void* shared, const void* global, uint32_t bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
               "l"(__cvta_generic_to_global(global)),
               "r"(bytes)
               : "memory");
}

// The same of 8 bytes, `bytes` being 0 or 8.
__device__ inline void CopyAsync8(void* shared, const void* global, uint32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(SharedAddress(shared)),
               "l"(__cvta_generic_to_global(global)),
               "r"(bytes)
               : "memory");
}

// The same of 4 bytes.
__device__ inline void CopyAsync4(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(SharedAddress(shared)),
               "l"(__cvta_generic_to_global(global))
               : "memory");
}

// Arrives at a barrier in shared memory once the thread's copies so far are there; one of the
// arrivals that the barrier was made for. Who waits for the phase sees them.
__device__ inline void BarrierArriveOnCopies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
}

// The thread's copies since the last commit become a group.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the thread's last kPending groups are there. Other threads see them after the
// next synchronisation.
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8x8 matrices of 16-bit elements: lane l has the address of row l % 8 (16 bytes) of matrix
// l / 8, and gets of each matrix the columns 2 (l % 4) + {0, 1} of row l / 4.
__device__ inline void LoadMatrices(const void* row, uint32_t (&x)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// The same with each matrix transposed: rows 2 (l % 4) + {0, 1} of column l / 4.
__device__ inline void LoadTransposed(const void* row, uint32_t (&x)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(SharedAddress(row))
               : "memory");
}

}  // namespace baton::kernels::cuda
