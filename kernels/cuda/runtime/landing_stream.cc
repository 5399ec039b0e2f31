#include "kernels/cuda/runtime/landing_stream.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/copy_queue.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/memory.h"
#include "kernels/core/round_up.h"
#include "kernels/core/shared_blocks.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/exported_memory.h"
#include "kernels/cuda/runtime/piece_mover.h"
#include "kernels/cuda/runtime/pinned_memory.h"
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
    status =
        ToStatus(cudaStreamCreateWithPriority(&landing->reads_, cudaStreamNonBlocking, greatest),
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
  absl::StatusOr<Memory> read = PinnedMemory().Allocate(kReadBytes);
  if (!read.ok()) {
    return read.status();
  }
  {
    const absl::MutexLock lock(&landing->read_mutex_);
    landing->read_ = *std::move(read);
  }
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

absl::Status LandingStream::Write(std::byte* target, std::span<const std::byte> source) {
  return Copy(target, source, cudaMemcpyHostToDevice);
}

absl::Status LandingStream::Copy(std::byte* target,
                                 std::span<const std::byte> source,
                                 cudaMemcpyKind kind) const {
  absl::Status status = MakeCurrent(device_);
  return status.ok()
             ? ToStatus(cudaMemcpyAsync(target, source.data(), source.size(), kind, stream_),
                        "copy to the device")
             : status;
}

absl::StatusOr<std::unique_ptr<SharedMapping>> LandingStream::Import(int fd, size_t size) {
  absl::Status status = MakeCurrent(device_);
  return status.ok() ? ImportExported(fd, size) : status;
}

absl::Status LandingStream::Pull(std::byte* target, std::span<const std::byte> source) {
  return Copy(target, source, cudaMemcpyDeviceToDevice);
}

absl::Status LandingStream::Wait() {
  absl::Status status = MakeCurrent(device_);
  return status.ok() ? ToStatus(cudaStreamSynchronize(stream_), "wait for copies to the device")
                     : status;
}

absl::StatusOr<uint64_t> LandingStream::WordSum(
    std::span<const std::span<const std::byte>> pieces) {
  absl::Status status = MakeCurrent(device_);
  const absl::MutexLock lock(&mutex_);
  return status.ok() ? adder_->Add(stream_, pieces) : status;
}

absl::Status LandingStream::ReadAll(std::span<const LandedRead> reads) {
  absl::Status status = MakeCurrent(device_);
  const absl::MutexLock lock(&read_mutex_);
  std::vector<LandedRead> parts;
  size_t used = 0;
  for (const LandedRead& read : reads) {
    for (size_t done = 0; status.ok() && done < read.target.size();) {
      const size_t bytes = std::min(read.target.size() - done, kReadBytes - used);
      parts.push_back({.target = read.target.subspan(done, bytes), .source = read.source + done});
      done += bytes;
      used += RoundUp(bytes, kMovedUnitBytes);
      if (used == kReadBytes) {
        status = ReadParts(parts);
        parts.clear();
        used = 0;
      }
    }
  }
  return status.ok() ? ReadParts(parts) : status;
}

absl::Status LandingStream::ReadParts(std::span<const LandedRead> parts) {
  std::vector<CopyQueue::Piece> pieces;
  pieces.reserve(parts.size());
  std::byte* read = read_.data();
  for (const LandedRead& part : parts) {
    pieces.push_back({.target = read, .source = part.source, .bytes = part.target.size()});
    read += RoundUp(part.target.size(), kMovedUnitBytes);
  }
  absl::Status status = MovePieces(reads_, pieces);
  // Behind an error too: nothing is written to the memory any more.
  status.Update(ToStatus(cudaStreamSynchronize(reads_), "wait for copies from the device"));
  read = read_.data();
  for (const LandedRead& part : parts) {
    if (status.ok()) {
      std::copy_n(read, part.target.size(), part.target.begin());
    }
    read += RoundUp(part.target.size(), kMovedUnitBytes);
  }
  return status;
}

}  // namespace baton::kernels::cuda
