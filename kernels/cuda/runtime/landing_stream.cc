#include "kernels/cuda/runtime/landing_stream.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/shared_blocks.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/exported_memory.h"
#include "kernels/cuda/runtime/word_adder.h"

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
  absl::StatusOr<std::unique_ptr<WordAdder>> adder = WordAdder::Create();
  if (!adder.ok()) {
    cudaStreamDestroy(stream);
    return adder.status();
  }
  return std::unique_ptr<LandingStream>(new LandingStream(device, stream, *std::move(adder)));
}

LandingStream::~LandingStream() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

absl::Status LandingStream::MakeCurrent() const {
  return ToStatus(cudaSetDevice(device_), "choose the device");
}

absl::Status LandingStream::Copy(void* target,
                                 const void* source,
                                 size_t bytes,
                                 cudaMemcpyKind kind) {
  absl::Status status = MakeCurrent();
  if (status.ok()) {
    status =
        ToStatus(cudaMemcpyAsync(target, source, bytes, kind, stream_),
                 kind == cudaMemcpyDeviceToHost ? "copy from the device" : "copy to the device");
  }
  return status;
}

absl::Status LandingStream::Write(std::byte* target, std::span<const std::byte> source) {
  return Copy(target, source.data(), source.size(), cudaMemcpyHostToDevice);
}

absl::StatusOr<std::unique_ptr<SharedMapping>> LandingStream::Import(int fd, size_t size) {
  absl::Status status = MakeCurrent();
  return status.ok() ? ImportExported(fd, size) : status;
}

absl::Status LandingStream::Pull(std::byte* target, std::span<const std::byte> source) {
  return Copy(target, source.data(), source.size(), cudaMemcpyDeviceToDevice);
}

absl::Status LandingStream::Wait() {
  absl::Status status = MakeCurrent();
  return status.ok() ? ToStatus(cudaStreamSynchronize(stream_), "wait for copies to the device")
                     : status;
}

absl::StatusOr<uint64_t> LandingStream::WordSum(
    std::span<const std::span<const std::byte>> pieces) {
  absl::Status status = MakeCurrent();
  const absl::MutexLock lock(&mutex_);
  return status.ok() ? adder_->Add(stream_, pieces) : status;
}

absl::Status LandingStream::Read(std::span<std::byte> target, const std::byte* source) {
  absl::Status status = Copy(target.data(), source, target.size(), cudaMemcpyDeviceToHost);
  return status.ok() ? Wait() : status;
}

}  // namespace baton::kernels::cuda
