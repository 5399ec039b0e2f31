// Which of cuDNN's kernels runs an attention graph on a device.
#pragma once

#include <cudnn_graph.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/cudnn_api.h"
#include "kernels/cuda/cudnn/descriptor.h"

namespace baton::kernels::cuda {

// What cuDNN has to know of a device, from its own JSON: graphs can be checked and compiled for a
// device that is not there.
absl::StatusOr<CudnnDescriptor> DevicePropertiesFromJson(const std::shared_ptr<const CudnnApi>& api,
                                                         std::string_view json);
// The same of a handle's device.
absl::StatusOr<CudnnDescriptor> DevicePropertiesOf(const std::shared_ptr<const CudnnApi>& api,
                                                   cudnnHandle_t handle);

// The engine that cuDNN's heuristics put first.
struct AttentionEngine {
  CudnnDescriptor config;
  int64_t index = 0;
  int64_t workspace_bytes = 0;
};

// The engine with the tile kernel of the device's generation. kUnimplemented, naming the shape, if
// there is none or only the generic one, which is several times slower: nobody should find that out
// from a dashboard.
absl::StatusOr<AttentionEngine> ChooseAttentionEngine(const AttentionGraph& graph,
                                                      const CudnnDescriptor& device);

// Compiles the engine's kernel, which takes about half a second, and loads it. kUnavailable once it
// is compiled and there is no driver to load it with.
absl::StatusOr<CudnnDescriptor> BuildAttentionPlan(const AttentionEngine& engine,
                                                   const CudnnDescriptor& device);

}  // namespace baton::kernels::cuda
