// Time of the device's work between two points of a queue.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime/device_queue.h"

namespace baton::kernels::cuda {

// Starts when it is made.
class Timer {
 public:
  explicit Timer(const DeviceQueue& queue) : queue_(queue) {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
    cudaEventRecord(begin_, queue.stream());
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Seconds from the start to the end of the work given since; waits for it.
  double Seconds() const {
    float milliseconds = 0.0f;
    cudaEventRecord(end_, queue_.stream());
    cudaEventSynchronize(end_);
    cudaEventElapsedTime(&milliseconds, begin_, end_);
    return double{milliseconds} * 1e-3;
  }

 private:
  const DeviceQueue& queue_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace baton::kernels::cuda
