// Bulk copies to shared memory, on whose bytes a phase of a barrier (ptx.cuh) waits. Semantics: PTX
// ISA 9.0, sections 9.7.9.25 and 9.7.13.15.
//
// One of the phase's arrivals expects the bytes (BarrierArriveAndExpect), before or after copies of
// as many in all are started (BulkCopy); then BulkCopiesStarted says that they have been. Hopper's
// copy engine counts bytes, so the arrival may come first and the word is nothing. In older code a
// thread copies 16 bytes at a time, and each copy holds the phase that is open when it is started:
// there the arrival is made by BulkCopiesStarted, and nothing by BarrierArriveAndExpect.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_copy_policy.cuh"

namespace baton::kernels::cuda {

// One arrival, which also makes the phase wait for `bytes` of bulk copies.
__device__ inline void BarrierArriveAndExpect(uint64_t* barrier, uint32_t bytes) {
  if constexpr (kHopperCode) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
        "r"(bytes)
        : "memory");
  }
}

// Lets the copy engine see what the thread has seen of memory, and use shared memory that it has
// read: before copies of what other threads wrote in the same kernel.
__device__ inline void CopyEngineFence() {
  if constexpr (kHopperCode) asm volatile("fence.proxy.async;" ::: "memory");
}

// Copies `bytes` (a multiple of 16, both addresses too) from global to shared memory; the barrier's
// phase gets them. One thread starts it.
__device__ inline void BulkCopy(
    void* shared, const void* global, uint32_t bytes, uint64_t* barrier, uint64_t policy) {
  if constexpr (kHopperCode) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(SharedAddress(shared)),
        "l"(__cvta_generic_to_global(global)),
        "r"(bytes),
        "r"(SharedAddress(barrier)),
        "l"(policy)
        : "memory");
  } else {
    for (uint32_t at = 0; at < bytes; at += 16) {
      CopyAsync16ByPolicy(
          static_cast<std::byte*>(shared) + at, static_cast<const std::byte*>(global) + at, policy);
    }
    // One arrival more for the phase to wait for, which is made when the bytes are there.
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(SharedAddress(barrier))
                 : "memory");
  }
}

// All copies that the phase waits for have been started, by the calling thread, which also expected
// their bytes.
__device__ inline void BulkCopiesStarted(uint64_t* barrier) {
  if constexpr (!kHopperCode) BarrierArrive(barrier);
}

// The same of copies by lanes of a warp, of which lane 0 expected the bytes. All lanes call it.
__device__ inline void WarpBulkCopiesStarted(uint64_t* barrier) {
  if constexpr (!kHopperCode) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) BarrierArrive(barrier);
  }
}

}  // namespace baton::kernels::cuda
