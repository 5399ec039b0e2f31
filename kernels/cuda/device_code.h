// What depends on the architecture that device code is compiled for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::kernels::cuda {

// Whether the code is for Hopper or newer devices, and may use what older ones lack. Of device
// code: what the current device runs is known to its queue (DeviceQueue::device).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kHopperCode = false;
#else
inline constexpr bool kHopperCode = true;
#endif

// Whether the code is for Hopper alone (sm_90a), and may multiply by warpgroups. Of device code:
// Device::multiplies_by_warpgroups.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900 && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "for Hopper, name the architecture 90a (BATON_CUDA_ARCHITECTURES)"
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
inline constexpr bool kWarpgroupCode = false;
#else
inline constexpr bool kWarpgroupCode = true;
#endif

// Blocks of a multiprocessor whose rings fill its shared memory.
constexpr int32_t RingBlocks(bool hopper_code) { return hopper_code ? 2 : 1; }
// Bytes of shared memory that a block may have on every device from compute capability 8.0 on: of a
// multiprocessor's 100 KiB or more each block takes one more for the system.
inline constexpr size_t kAnyBlockBytes = size_t{99} << 10;
// Bytes that each block of RingBlocks may have, on Hopper half of 228 KiB.
constexpr size_t RingBlockBytes(bool hopper_code) {
  return hopper_code ? size_t{113} << 10 : kAnyBlockBytes;
}

}  // namespace baton::kernels::cuda
