// Products by warpgroups: four warps, of which the first's number is a multiple of four, multiply
// together while they go on. Semantics: PTX ISA 9.0, section 9.7.15. Hopper's alone
// (kWarpgroupCode).
#pragma once

#include <cstdint>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/ptx.cuh"

namespace baton::kernels::cuda {

// A matrix of 16-bit elements in shared memory, from its first on: eight rows of eight elements of
// depth are 128 bytes behind each other, the next eight rows 128 bytes further on, the next eight
// elements of depth `depth_bytes`, a multiple of 16.
__device__ inline uint64_t WarpgroupOperand(const void* first, uint32_t depth_bytes) {
  constexpr uint64_t kRowsBytes = 128;
  return uint64_t{SharedAddress(first) >> 4} | uint64_t{depth_bytes >> 4} << 16 |
         (kRowsBytes >> 4) << 32;
}

// Lets products see what the thread has seen of shared memory.
__device__ inline void WarpgroupSharedFence() {
  if constexpr (kWarpgroupCode) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// What all four warps did to registers and shared memory is done before products that follow.
__device__ inline void WarpgroupFence() {
  if constexpr (kWarpgroupCode) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// The products that were started since the last call become a group.
__device__ inline void WarpgroupCommit() {
  if constexpr (kWarpgroupCode) asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until all groups are done.
__device__ inline void WarpgroupWait() {
  if constexpr (kWarpgroupCode) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// Keeps the compiler from moving what is done with the registers over this place.
template <int kCount>
__device__ inline void HoldRegisters(float (&registers)[kCount]) {
#pragma unroll
  for (float& x : registers) asm volatile("" : "+f"(x)::"memory");
}

// Starts d += a b of 64 rows, 160 columns and 16 steps of depth with bf16 operands. Warp w of the
// four has rows 16 w on; a lies over its lanes as that of MultiplyAddBf16 (ptx_bf16.cuh), d[4 j]
// on as the results of columns 8 j on. `b` is a WarpgroupOperand whose rows are the columns. None
// of the registers may be used before WarpgroupWait.
__device__ inline void WarpgroupMultiplyAdd(float (&d)[80], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (kWarpgroupCode) {
    asm volatile(
        "{\n"
        ".reg .pred adds;\n"
        "setp.ne.b32 adds, %85, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
        "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79}, "
        "{%80,%81,%82,%83}, %84, adds, 1, 1, 0;\n"
        "}\n"
        // clang-format off
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]),
          "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
          "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
          "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
          "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]),
          "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
          "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]),
          "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]),
          "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]),
          "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]),
          "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
        // clang-format on
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
  }
}

}  // namespace baton::kernels::cuda
