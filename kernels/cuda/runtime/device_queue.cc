#include "kernels/cuda/runtime/device_queue.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/cuda/cublas/matmul_plans.h"
#include "kernels/cuda/cudnn/attention_plans.h"
#include "kernels/cuda/libraries/library_paths.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/device_memory.h"
#include "kernels/cuda/runtime/launch_cache.h"

namespace baton::kernels::cuda {
namespace {

absl::StatusOr<cudaStream_t> CreateStream(int32_t rank) {
  int least = 0;
  int greatest = 0;
  // Greater priorities are smaller numbers.
  cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
  cudaStream_t stream = nullptr;
  if (error == cudaSuccess) {
    error = cudaStreamCreateWithPriority(
        &stream, cudaStreamNonBlocking, std::min(greatest + rank, least));
  }
  if (error != cudaSuccess) {
    return ToStatus(error, "create a stream");
  }
  return stream;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceQueue>> DeviceQueue::Create(size_t workspace_bytes,
                                                                 int32_t rank) {
  std::unique_ptr<DeviceQueue> queue(new DeviceQueue());
  const absl::StatusOr<Device> device = CurrentDevice();
  if (!device.ok()) {
    return device.status();
  }
  queue->device_ = *device;
  absl::StatusOr<DeviceMemory> workspace = DeviceMemory::Allocate(workspace_bytes);
  if (!workspace.ok()) {
    return workspace.status();
  }
  queue->workspace_ = *std::move(workspace);
  absl::StatusOr<DeviceMemory> counters = DeviceMemory::Allocate(kCounters * sizeof(uint32_t));
  if (!counters.ok()) {
    return counters.status();
  }
  queue->counters_ = *std::move(counters);
  absl::StatusOr<cudaStream_t> stream = CreateStream(rank);
  if (!stream.ok()) {
    return stream.status();
  }
  queue->stream_ = *stream;
  queue->launches_ = std::make_unique<LaunchCache>(*stream);
  return queue;
}

DeviceQueue::~DeviceQueue() {
  if (stream_ != nullptr) {
    cudaStreamSynchronize(stream_);
    attention_plans_.reset();  // whose handle knows the stream
    cudaStreamDestroy(stream_);
  }
}

absl::StatusOr<MatmulPlans*> DeviceQueue::matmul_plans() {
  if (matmul_plans_ == nullptr) {
    absl::StatusOr<std::unique_ptr<MatmulPlans>> plans =
        MatmulPlans::Create(LibrarySearch::OfProcess(kCublasLtVariable));
    if (!plans.ok()) {
      return plans.status();
    }
    matmul_plans_ = *std::move(plans);
  }
  return matmul_plans_.get();
}

absl::StatusOr<AttentionPlans*> DeviceQueue::attention_plans() {
  if (attention_plans_ == nullptr && attention_status_.ok()) {
    absl::StatusOr<std::unique_ptr<AttentionPlans>> plans =
        AttentionPlans::Create(LibrarySearch::OfProcess(kCudnnVariable), stream_);
    attention_status_ = plans.status();
    if (plans.ok()) {
      attention_plans_ = *std::move(plans);
    }
  }
  if (!attention_status_.ok()) {
    return attention_status_;
  }
  return attention_plans_.get();
}

absl::Status DeviceQueue::Wait() const {
  return ToStatus(cudaStreamSynchronize(stream_), "work of the device");
}

}  // namespace baton::kernels::cuda
