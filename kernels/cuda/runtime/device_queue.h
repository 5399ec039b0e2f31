// The device's work in order: what ops of the CUDA back end are given to launch on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace baton::kernels::cuda {

class AttentionPlans;
class LaunchCache;
class MatmulPlans;

// A stream with the memory that kernels of one stream share. Owned by the executor thread; ops on
// one queue run one after another.
class DeviceQueue {
 public:
  // Counters in which blocks of one launch find out who of them ends last.
  static constexpr int32_t kCounters = 1 << 16;

  // A queue of the current device with a workspace of this size. Where several have work, blocks of
  // lower ranks go first; a device tells six ranks apart or so, further ones are its last.
  // kFailedPrecondition where there is no device that the back end has code for (CurrentDevice),
  // kResourceExhausted without memory.
  static absl::StatusOr<std::unique_ptr<DeviceQueue>> Create(size_t workspace_bytes,
                                                             int32_t rank = 0);
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  cudaStream_t stream() const { return stream_; }
  const Device& device() const { return device_; }
  // Streaming multiprocessors of the device.
  int32_t multiprocessors() const { return device_.multiprocessors; }
  // Scratch memory of one op; contents do not survive it.
  const DeviceMemory& workspace() const { return workspace_; }
  // [kCounters], zero between ops: a kernel that counts puts back zero.
  uint32_t* counters() const { return counters_.as<uint32_t>(); }

  // Whether other queues have work that may run beside this one's (SideStreams): kernels that wait
  // for memory leave them multiprocessors.
  bool shared() const { return shared_; }
  void set_shared(bool shared) { shared_ = shared; }

  // For launches that come again with the same arguments.
  LaunchCache& launches() const { return *launches_; }

  // The queue's matrix products (kernels/cuda/cublas/matmul_plans.h). Loads cuBLASLt at the first
  // call: kNotFound or kFailedPrecondition without one that will do, on which nothing else depends.
  absl::StatusOr<MatmulPlans*> matmul_plans();

  // The queue's attention of prompts' rows (kernels/cuda/cudnn/attention_plans.h). Loads cuDNN at
  // the first call: kNotFound or kFailedPrecondition without one that will do, then and ever after.
  // Such rows take the kernel for decode rows then, several times as long: ask at start-up.
  absl::StatusOr<AttentionPlans*> attention_plans();

  // Waits until all work is done; kInternal with the first error of a kernel.
  absl::Status Wait() const;

 private:
  DeviceQueue() = default;

  cudaStream_t stream_ = nullptr;
  Device device_;
  bool shared_ = false;
  DeviceMemory workspace_;
  DeviceMemory counters_;
  std::unique_ptr<LaunchCache> launches_;
  std::unique_ptr<MatmulPlans> matmul_plans_;  // null before it is asked for
  std::unique_ptr<AttentionPlans> attention_plans_;
  absl::Status attention_status_;  // why there are none
};

}  // namespace baton::kernels::cuda
