#include "kernels/cuda/nccl/nccl_registration.h"

#include <nccl.h>

#include <cstddef>
#include <span>

#include "absl/status/status.h"

namespace baton::kernels::cuda {

absl::Status NcclRegistration::Add(ncclComm_t comm, std::span<std::byte> buffer) {
  if (absl::Status status = api_->CanRegister(); !status.ok()) {
    return status;
  }
  void* handle = nullptr;
  if (absl::Status status =
          api_->ToStatus(api_->register_buffer(comm, buffer.data(), buffer.size(), &handle),
                         "register a buffer",
                         comm);
      !status.ok()) {
    return status;
  }
  if (handle == nullptr) {
    return absl::FailedPreconditionError(
        "NCCL registers no buffers: NCCL_LOCAL_REGISTER is 0, or peers are reached by memcpy");
  }
  handles_.push_back(handle);
  return absl::OkStatus();
}

void NcclRegistration::Clear(ncclComm_t comm) {
  for (void* const handle : handles_) {
    api_->deregister_buffer(comm, handle);
  }
  handles_.clear();
}

}  // namespace baton::kernels::cuda
