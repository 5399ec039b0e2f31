// Thread block clusters: blocks of one multiprocessor group that read each other's shared memory.
// Semantics: PTX ISA 9.0, sections 9.7.9.23 (mapa) and 9.7.13.4 (barrier.cluster). Code for devices
// older than Hopper has clusters of one block.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/ptx.cuh"

namespace baton::kernels::cuda {

// The place of the block in its cluster.
__device__ inline uint32_t ClusterRank() {
  uint32_t rank = 0;
  if constexpr (kHopperCode) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits for all threads of the cluster. What they wrote before, to shared memory or any other, is
// seen behind it.
__device__ inline void ClusterSync() {
  if constexpr (kHopperCode) {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;\n" ::
            : "memory");
  } else {
    __syncthreads();
  }
}

// Two neighbouring numbers at `address`, of this block's shared memory, in that of block `rank` of
// the cluster.
__device__ inline double2 LoadOfCluster(const double2* address, uint32_t rank) {
  if constexpr (!kHopperCode) return *address;
  double2 value;
  asm volatile(
      "{\n"
      ".reg .u32 remote;\n"
      "mapa.shared::cluster.u32 remote, %2, %3;\n"
      "ld.shared::cluster.v2.f64 {%0, %1}, [remote];\n"
      "}\n"
      : "=d"(value.x), "=d"(value.y)
      : "r"(SharedAddress(address)), "r"(rank)
      : "memory");
  return value;
}

}  // namespace baton::kernels::cuda
