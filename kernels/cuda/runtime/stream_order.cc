#include "kernels/cuda/runtime/stream_order.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include "absl/status/status.h"

#include "kernels/cuda/runtime/cuda_status.h"

namespace baton::kernels::cuda {

StreamOrder::~StreamOrder() {
  if (event_ != nullptr) {
    cudaEventDestroy(event_);
  }
}

// A stream that waits for an event waits for what the event had recorded by then, so that one event
// serves all.
absl::Status StreamOrder::Wait(cudaStream_t later, cudaStream_t earlier) {
  if (event_ == nullptr) {
    absl::Status status =
        ToStatus(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "create an event");
    if (!status.ok()) {
      return status;
    }
  }
  absl::Status status = ToStatus(cudaEventRecord(event_, earlier), "record an event");
  return status.ok() ? ToStatus(cudaStreamWaitEvent(later, event_, 0), "wait for an event")
                     : status;
}

}  // namespace baton::kernels::cuda
