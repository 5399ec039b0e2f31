#include "kernels/cuda/cudnn/attention_plan.h"

#include <cudnn_graph.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/cudnn_api.h"
#include "kernels/cuda/cudnn/descriptor.h"

namespace baton::kernels::cuda {
namespace {

// Engines of attention graphs as cuDNN 9 numbers them (performance.md 1.2): 2 is the kernel of
// Hopper, 1 and 8 take any shape.
constexpr int64_t kTiledEngine = 2;

absl::StatusOr<std::vector<CudnnDescriptor>> EngineConfigs(const AttentionGraph& graph,
                                                           const CudnnDescriptor& device) {
  CudnnDescriptor heuristics(device.api(), CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.SetDescriptor(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.descriptor());
  heuristics.Set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  heuristics.SetDescriptor(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  if (absl::Status status = heuristics.Finalize(); !status.ok()) {
    return status;
  }
  return heuristics.GetDescriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
}

absl::StatusOr<int64_t> EngineIndex(const CudnnDescriptor& config) {
  CudnnDescriptor engine(config.api(), CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  if (absl::Status status = config.GetDescriptor(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
      !status.ok()) {
    return status;
  }
  return engine.GetInt64(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
}

}  // namespace

absl::StatusOr<CudnnDescriptor> DevicePropertiesFromJson(const std::shared_ptr<const CudnnApi>& api,
                                                         std::string_view json) {
  CudnnDescriptor device(api, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.SetText(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json);
  if (absl::Status status = device.Finalize(); !status.ok()) {
    return status;
  }
  return device;
}

absl::StatusOr<CudnnDescriptor> DevicePropertiesOf(const std::shared_ptr<const CudnnApi>& api,
                                                   cudnnHandle_t handle) {
  CudnnDescriptor device(api, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.Set(CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, handle);
  if (absl::Status status = device.Finalize(); !status.ok()) {
    return status;
  }
  return device;
}

absl::StatusOr<AttentionEngine> ChooseAttentionEngine(const AttentionGraph& graph,
                                                      const CudnnDescriptor& device) {
  absl::StatusOr<std::vector<CudnnDescriptor>> configs = EngineConfigs(graph, device);
  if (!configs.ok()) {
    return configs.status();
  }
  if (configs->empty()) {
    return absl::UnimplementedError(
        absl::StrCat("cuDNN has no attention kernel for ", graph.shape().ToString()));
  }
  CudnnDescriptor& first = configs->front();
  const absl::StatusOr<int64_t> index = EngineIndex(first);
  if (!index.ok()) {
    return index.status();
  }
  if (*index != kTiledEngine) {
    return absl::UnimplementedError(absl::StrCat(
        "cuDNN has only its generic attention engine ", *index, " for ", graph.shape().ToString()));
  }
  const absl::StatusOr<int64_t> bytes = first.GetInt64(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE);
  if (!bytes.ok()) {
    return bytes.status();
  }
  return AttentionEngine{.config = std::move(first), .index = *index, .workspace_bytes = *bytes};
}

absl::StatusOr<CudnnDescriptor> BuildAttentionPlan(const AttentionEngine& engine,
                                                   const CudnnDescriptor& device) {
  CudnnDescriptor plan(device.api(), CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.SetDescriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine.config);
  plan.SetDescriptor(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
  if (absl::Status status = plan.Finalize(); !status.ok()) {
    return status;
  }
  return plan;
}

}  // namespace baton::kernels::cuda
