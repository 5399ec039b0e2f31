// How far a stream has come.
#pragma once

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <array>
#include <cstddef>

#include "absl/status/status.h"

#include "kernels/cuda/runtime/cuda_status.h"

namespace baton::kernels::cuda {

// Places of a stream, the newest `kCount`. Of the device that is current when they are made.
template <size_t kCount>
class StreamMarks {
 public:
  StreamMarks() = default;
  ~StreamMarks() {
    for (const cudaEvent_t event : events_) {
      if (event != nullptr) {
        cudaEventDestroy(event);
      }
    }
  }
  StreamMarks(const StreamMarks&) = delete;
  StreamMarks& operator=(const StreamMarks&) = delete;

  // Waits until the stream has come to the oldest place, if there are as many, and marks the one
  // where it will have done all that is on it now.
  absl::Status Replace(cudaStream_t stream) {
    cudaEvent_t& event = events_[next_++ % kCount];
    absl::Status status =
        event == nullptr
            ? ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "create an event")
            : ToStatus(cudaEventSynchronize(event), "wait for an event");
    return status.ok() ? ToStatus(cudaEventRecord(event, stream), "record an event") : status;
  }

 private:
  std::array<cudaEvent_t, kCount> events_ = {};
  size_t next_ = 0;
};

}  // namespace baton::kernels::cuda
