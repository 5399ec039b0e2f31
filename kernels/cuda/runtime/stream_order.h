// The order of work on different streams.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"

namespace baton::kernels::cuda {

// An event that tells streams of one another. Of the device that is current when it is made.
class StreamOrder {
 public:
  StreamOrder() = default;
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // What comes next on `later` waits for what is on `earlier` now.
  absl::Status Wait(cudaStream_t later, cudaStream_t earlier);

 private:
  cudaEvent_t event_ = nullptr;  // made at the first call
};

}  // namespace baton::kernels::cuda
