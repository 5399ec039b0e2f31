// Launches that overlap the end of the kernels in front.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cuda/runtime/device_queue.h"

namespace baton::kernels::cuda {

// LaunchEarly of clusters of `cluster` neighbouring blocks in x, 1 where the device runs code from
// before Hopper.
template <typename... Params, typename... Args>
cudaError_t LaunchClustersEarly(const DeviceQueue& queue,
                                void (*kernel)(Params...),
                                dim3 grid,
                                uint32_t cluster,
                                dim3 block,
                                size_t shared_bytes,
                                Args&&... args) {
  std::array<cudaLaunchAttribute, 2> attributes = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = queue.stream();
  config.attrs = attributes.data();
  config.numAttrs = queue.device().has_hopper_code ? (cluster > 1 ? 2 : 1) : 0;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

// Launches a kernel by programmatic dependent launch: its blocks may begin, and prepare what
// depends on no other kernel, once every block of the kernel in front has called LaunchDependents
// or ended (kernels/cuda/ptx.cuh). Every thread of such a kernel calls WaitForPredecessors before
// it reads what others write, and before it writes; at least one calls it in any case, as the
// kernel behind waits for this one alone. Where the device runs code from before Hopper, which
// can't wait so, a kernel begins when those in front have ended.
//
// For the kernels of a decode step that read much, and not where a block of the kernel behind could
// take one multiprocessor twice and leave another idle (docs/kernels/dense.md). To be compiled by
// nvcc.
template <typename... Params, typename... Args>
cudaError_t LaunchEarly(const DeviceQueue& queue,
                        void (*kernel)(Params...),
                        dim3 grid,
                        dim3 block,
                        size_t shared_bytes,
                        Args&&... args) {
  return LaunchClustersEarly(
      queue, kernel, grid, 1, block, shared_bytes, std::forward<Args>(args)...);
}

}  // namespace baton::kernels::cuda
