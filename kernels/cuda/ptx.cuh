// Instructions that CUDA C++ has no name for: barriers in shared memory, dependent launches, matrix
// multiply-add of one warp. Semantics: PTX ISA 9.0, sections 9.7.13 to 9.7.15. Code for devices
// older than Hopper does the same by other instructions (kHopperCode).
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/device_code.h"

namespace baton::kernels::cuda {

// The address of shared memory as instructions take it.
__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// A phase of the barrier ends after `arrivals` arrivals, and when all bytes expected have come.
__device__ inline void BarrierInit(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}

// Makes initialised barriers visible to the copy engine; before the block's first synchronisation.
__device__ inline void BarrierInitFence() {
  if constexpr (kHopperCode) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
}

// One arrival. What the thread wrote before is seen by who waits for the phase.
__device__ inline void BarrierArrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}

// Whether the phase of this parity has ended.
__device__ inline bool HasPhaseEnded(uint64_t* barrier, uint32_t parity) {
  uint32_t ended;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(ended)
      : "r"(SharedAddress(barrier)), "r"(parity)
      : "memory");
  return ended != 0;
}

// Waits until the phase of this parity has ended. The thread sleeps meanwhile, for `kSleepNs` at a
// time unless the phase ends before; in older code for a time in which it can't be woken.
__device__ inline void BarrierWait(uint64_t* barrier, uint32_t parity) {
  if constexpr (kHopperCode) {
    constexpr uint32_t kSleepNs = 20000;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(SharedAddress(barrier)),
        "r"(parity),
        "r"(kSleepNs)
        : "memory");
  } else {
    constexpr uint32_t kSleepNs = 20;
    while (!HasPhaseEnded(barrier, parity)) __nanosleep(kSleepNs);
  }
}

// The caches' treatment of bytes that are read once: they make room before others.
__device__ inline uint64_t ReadOncePolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The same of bytes that other blocks may read too.
__device__ inline uint64_t ReadAgainPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Programmatic dependent launch: a kernel that is launched so may begin once all blocks of the one
// in front have said this, or ended. Not of older code (runtime/early_launch.h).
__device__ inline void LaunchDependents() {
  if constexpr (kHopperCode) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Waits until the kernels in front have ended and what they wrote is seen. Before anything of
// theirs is read, or memory of theirs written; at once in a kernel that is launched otherwise.
__device__ inline void WaitForPredecessors() {
  if constexpr (kHopperCode) asm volatile("griddepcontrol.wait;" ::: "memory");
}

// True in one lane of a whole warp. What only that lane does the compiler knows to be done once.
__device__ inline bool ElectOne() {
  if constexpr (kHopperCode) {
    uint32_t elected;
    asm volatile(
        "{\n"
        ".reg .pred is_elected;\n"
        "elect.sync _|is_elected, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, is_elected;\n"
        "}\n"
        : "=r"(elected));
    return elected != 0;
  } else {
    return threadIdx.x % 32 == 0;
  }
}

// Adds 1 and returns what there was. What the thread wrote, or has seen of others of its block, is
// seen by who reads the sum and then calls __threadfence().
__device__ inline uint32_t CountRelease(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

// Adds to a counter and returns what there was. What the thread wrote, or has seen of others of its
// block, is seen by who reads the sum here; and what was by those who counted before it.
__device__ inline uint32_t CountAcquireRelease(uint32_t* counter, uint32_t count) {
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(count)
               : "memory");
  return before;
}

// Counts one of `all` parts of a result, which this thread has stored or has seen stored by others
// of its block. True in the thread that counts the last: all parts are to be seen, and the counter
// is zero again.
//
// Release waits until the multiprocessor's requests before it are served, those of copies that are
// on their way too, which is microseconds where a ring of them is full: so only the last part pays
// for a second fence.
__device__ inline bool CountsLast(uint32_t* counter, int32_t all) {
  if (CountRelease(counter) + 1 != static_cast<uint32_t>(all)) return false;
  *counter = 0;
  __threadfence();
  return true;
}

// Synchronises `threads` threads of the block that name the same barrier (1 to 15).
__device__ inline void NamedBarrier(uint32_t name, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// d += a b of m16n8k16 with fp16 operands and fp32 accumulators. Lane l has of A the rows l/4 and
// l/4 + 8 (a[0], a[2] and a[1], a[3]) at columns 2 (l%4) + {0, 1} (a[0], a[1]) and + {8, 9}; of B
// the rows 2 (l%4) + {0, 1} (b[0]) and + {8, 9} (b[1]) of column l/4; of D the columns 2 (l%4) +
// {0, 1} of row l/4 (d[0], d[1]) and of row l/4 + 8.
__device__ inline void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// d += a b of m16n8k32 on bytes, A's unsigned and B's signed, with int32 accumulators. Lane l has
// of A the rows l/4 and l/4 + 8 (a[0], a[2] and a[1], a[3]) at columns 4 (l%4) + {0, 1, 2, 3}
// (a[0], a[1]) and 16 further (a[2], a[3]); of B the rows 4 (l%4) + {0, 1, 2, 3} (b[0]) and 16
// further (b[1]) of column l/4; of D the same as above. The first byte is a word's lowest.
__device__ inline void MultiplyAddBytes(int32_t (&d)[4],
                                        const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two numbers as halves, `low` in the lower one; beyond the range of fp16 they saturate.
__device__ inline uint32_t PackHalves(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Transposes an 8x8 matrix of 16-bit elements that lies over the warp: lane l gives and gets
// columns 2 (l%4) + {0, 1} of row l/4.
__device__ inline uint32_t Transpose8x8(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// (x & mask) | bits in one instruction.
__device__ inline uint32_t AndOr(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
}

// What makes exponents to base e such to base 2, and logarithms to base 2 such to base e.
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// 2^x, to 2 units in the last place; 0 for -inf.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace baton::kernels::cuda
