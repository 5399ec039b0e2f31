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
  std::unique_ptr<LandingStream> landing(new LandingStream());
  int least = 0;
  int greatest = 0;
  absl::Status status = ToStatus(cudaGetDevice(&landing->device_), "find the current device");
  if (status.ok()) {
    status = ToStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest), "find the priorities");
  }
  if (status.ok()) {
    status =
        ToStatus(cudaStreamCreateWithPriority(&landing->stream_, cudaStreamNonBlocking, greatest),
                 "create a stream");
  }
  if (status.ok()) {
    status = ToStatus(cudaStreamCreateWithFlags(&landing->reads_, cudaStreamNonBlocking),
                      "create a stream");
  }
  if (!status.ok()) {
    return status;
  }
  absl::StatusOr<std::unique_ptr<WordAdder>> adder = WordAdder::Create();
  if (!adder.ok()) {
    return adder.status();
  }
  landing->adder_ = *std::move(adder);
  return landing;
}

LandingStream::~LandingStream() {
  for (const cudaStream_t stream : {stream_, reads_}) {
    if (stream != nullptr) {
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
  }
}

absl::Status LandingStream::MakeCurrent() const {
  return ToStatus(cudaSetDevice(device_), "choose the device");
}

absl::Status LandingStream::Write(std::byte* target, std::span<const std::byte> source) {
  return Copy(target, source, cudaMemcpyHostToDevice);
}

absl::Status LandingStream::Copy(std::byte* target,
                                 std::span<const std::byte> source,
                                 cudaMemcpyKind kind) const {
  absl::Status status = MakeCurrent();
  return status.ok()
             ? ToStatus(cudaMemcpyAsync(target, source.data(), source.size(), kind, stream_),
                        "copy to the device")
             : status;
}

absl::StatusOr<std::unique_ptr<SharedMapping>> LandingStream::Import(int fd, size_t size) {
  absl::Status status = MakeCurrent();
  return status.ok() ? ImportExported(fd, size) : status;
}

absl::Status LandingStream::Pull(std::byte* target, std::span<const std::byte> source) {
  return Copy(target, source, cudaMemcpyDeviceToDevice);
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
  absl::Status status = MakeCurrent();
  if (status.ok()) {
    status = ToStatus(
        cudaMemcpyAsync(target.data(), source, target.size(), cudaMemcpyDeviceToHost, reads_),
        "copy from the device");
  }
  return status.ok() ? ToStatus(cudaStreamSynchronize(reads_), "wait for copies from the device")
                     : status;
}

}  // namespace baton::kernels::cuda
