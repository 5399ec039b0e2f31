// Memory that a communicator knows.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "kernels/cuda/nccl/nccl_api.h"

namespace baton::kernels::cuda {

// Buffers that are registered with one communicator. Their memory is NCCL's own (ncclMemAlloc):
// what cudaMalloc gives NCCL does not show to a GPU of another process, and says nothing. Calls
// need a communicator that has joined, and none of its calls under way.
class NcclRegistration {
 public:
  explicit NcclRegistration(std::shared_ptr<const NcclApi> api) : api_(std::move(api)) {}

  // NcclApi::CanRegister's error; kFailedPrecondition where NCCL was told to register nothing.
  // Nothing is said to the peer before the buffer is sent or received for the first time.
  absl::Status Add(ncclComm_t comm, std::span<std::byte> buffer);
  bool empty() const { return handles_.empty(); }
  // Gives all back, which waits for the peer's process where it has seen them. An error is one of a
  // communicator that is at its end, so that nobody is told.
  void Clear(ncclComm_t comm);

 private:
  const std::shared_ptr<const NcclApi> api_;
  std::vector<void*> handles_;
};

}  // namespace baton::kernels::cuda
