#include "kernels/cuda/cudnn/attention_plans.h"

#include <cudnn_graph.h>
#include <driver_types.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/attention_plan.h"
#include "kernels/cuda/cudnn/cudnn_api.h"
#include "kernels/cuda/cudnn/descriptor.h"
#include "kernels/cuda/libraries/library_paths.h"

namespace baton::kernels::cuda {
namespace {

int64_t PowerOfTwo(int64_t least) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(least)));
}

}  // namespace

std::optional<AttentionBucket> BucketFor(int64_t sequences,
                                         int64_t max_sequence_rows,
                                         int64_t max_keys) {
  if (sequences <= 0 || max_sequence_rows <= 0 || max_keys < max_sequence_rows ||
      max_keys > AttentionBucket::kMostTokens) {
    return std::nullopt;
  }
  return AttentionBucket{
      .batch = PowerOfTwo(std::min(sequences, AttentionBucket::kMostSequences)),
      .queries = PowerOfTwo(std::max(max_sequence_rows, AttentionBucket::kLeastTokens))};
}

absl::StatusOr<std::unique_ptr<AttentionPlans>> AttentionPlans::Create(const LibrarySearch& search,
                                                                       cudaStream_t stream) {
  absl::StatusOr<std::shared_ptr<const CudnnApi>> loaded = LoadCudnn(search);
  if (!loaded.ok()) {
    return loaded.status();
  }
  const std::shared_ptr<const CudnnApi>& api = *loaded;
  cudnnHandle_t made = nullptr;
  if (absl::Status status = api->ToStatus(api->create(&made), "make a handle"); !status.ok()) {
    return status;
  }
  Handle handle(made, api->destroy);
  if (absl::Status status = api->ToStatus(api->set_stream(made, stream), "choose a stream");
      !status.ok()) {
    return status;
  }
  absl::StatusOr<CudnnDescriptor> device = DevicePropertiesOf(api, made);
  if (!device.ok()) {
    return device.status();
  }
  return absl::WrapUnique(new AttentionPlans(api, std::move(handle), *std::move(device)));
}

AttentionPlans::AttentionPlans(std::shared_ptr<const CudnnApi> api,
                               Handle handle,
                               CudnnDescriptor device)
    : api_(std::move(api)), handle_(std::move(handle)), device_(std::move(device)) {}

absl::StatusOr<const AttentionPlan*> AttentionPlans::Find(const AttentionShape& shape) {
  const auto [known, unseen] = plans_.try_emplace(shape, absl::UnknownError("not compiled"));
  absl::StatusOr<AttentionPlan>& plan = known->second;
  if (unseen) {
    plan = Compile(shape);
  }
  if (!plan.ok()) {
    return plan.status();
  }
  if (unseen) {
    CompileOtherBatches(shape);
  }
  return &*plan;
}

void AttentionPlans::CompileOtherBatches(AttentionShape shape) {
  for (shape.batch = 1; shape.batch <= AttentionBucket::kMostSequences; shape.batch *= 2) {
    if (!plans_.contains(shape)) {
      plans_.emplace(shape, Compile(shape));
    }
  }
}

absl::StatusOr<AttentionPlan> AttentionPlans::Compile(const AttentionShape& shape) const {
  absl::StatusOr<AttentionGraph> graph = AttentionGraph::Build(api_, shape);
  if (!graph.ok()) {
    return graph.status();
  }
  absl::StatusOr<AttentionEngine> engine = ChooseAttentionEngine(*graph, device_);
  if (!engine.ok()) {
    return engine.status();
  }
  absl::StatusOr<CudnnDescriptor> plan = BuildAttentionPlan(*engine, device_);
  if (!plan.ok()) {
    return plan.status();
  }
  const absl::StatusOr<int64_t> bytes = plan->GetInt64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  if (!bytes.ok()) {
    return bytes.status();
  }
  return AttentionPlan{.graph = *std::move(graph),
                       .engine = *std::move(engine),
                       .plan = *std::move(plan),
                       .scratch_bytes = static_cast<size_t>(*bytes)};
}

absl::Status AttentionPlans::Run(const AttentionPlan& plan,
                                 std::span<const AttentionArgument> arguments,
                                 std::byte* scratch) const {
  std::vector<int64_t> names;
  std::vector<void*> addresses;
  names.reserve(arguments.size());
  addresses.reserve(arguments.size());
  for (const AttentionArgument& argument : arguments) {
    names.push_back(static_cast<int64_t>(argument.tensor));
    addresses.push_back(const_cast<void*>(argument.address));
  }
  const std::array<void*, 1> workspace = {scratch};
  CudnnDescriptor pack(api_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.SetInt64s(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, names);
  pack.SetPointers(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, addresses);
  pack.SetPointers(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace);
  if (absl::Status status = pack.Finalize(); !status.ok()) {
    return status;
  }
  return api_->ToStatus(api_->execute(handle_.get(), plan.plan.handle(), pack.handle()),
                        "run attention");
}

int64_t AttentionPlans::compiled() const {
  return std::count_if(
      plans_.begin(), plans_.end(), [](const auto& plan) { return plan.second.ok(); });
}

}  // namespace baton::kernels::cuda
