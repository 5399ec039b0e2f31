#include "kernels/cuda/runtime/landing_stream.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/runtime/cuda_status.h"

namespace baton::kernels::cuda {

absl::StatusOr<std::unique_ptr<LandingStream>> LandingStream::Create() {
  int device = 0;
  if (absl::Status status = ToStatus(cudaGetDevice(&device), "find the current device");
      !status.ok()) {
    return status;
  }
  cudaStream_t stream = nullptr;
  if (absl::Status status =
          ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream");
      !status.ok()) {
    return status;
  }
  return std::unique_ptr<LandingStream>(new LandingStream(device, stream));
}

LandingStream::~LandingStream() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

absl::Status LandingStream::Copy(void* target,
                                 const void* source,
                                 size_t bytes,
                                 cudaMemcpyKind kind) {
  absl::Status status = ToStatus(cudaSetDevice(device_), "choose the device");
  if (status.ok()) {
    status =
        ToStatus(cudaMemcpyAsync(target, source, bytes, kind, stream_),
                 kind == cudaMemcpyHostToDevice ? "copy to the device" : "copy from the device");
  }
  return status;
}

absl::Status LandingStream::Write(std::byte* target, std::span<const std::byte> source) {
  return Copy(target, source.data(), source.size(), cudaMemcpyHostToDevice);
}

absl::Status LandingStream::Wait() {
  absl::Status status = ToStatus(cudaSetDevice(device_), "choose the device");
  return status.ok() ? ToStatus(cudaStreamSynchronize(stream_), "wait for copies to the device")
                     : status;
}

absl::Status LandingStream::Read(std::span<std::byte> target, const std::byte* source) {
  absl::Status status = Copy(target.data(), source, target.size(), cudaMemcpyDeviceToHost);
  return status.ok() ? Wait() : status;
}

}  // namespace baton::kernels::cuda
