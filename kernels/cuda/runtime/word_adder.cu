#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/memory.h"
#include "kernels/core/word_sum.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"
#include "kernels/cuda/runtime/pinned_memory.h"
#include "kernels/cuda/runtime/word_adder.h"

namespace baton::kernels::cuda {

namespace {

// What one block adds up.
struct Part {
  const uint64_t* words;
  uint64_t count;
  uint64_t index;  // of the first word in the sum
};

constexpr int kThreads = 256;
// Words that a thread has under way at a time.
constexpr int kWordsAtOnce = 8;
// Parts of a launch, and words of a part: 64 KiB, so that a segment of 2 ms is enough of them.
constexpr size_t kMaxParts = 4096;
constexpr uint64_t kPartWords = 8192;

__global__ void __launch_bounds__(kThreads) AddKernel(const Part* parts, unsigned long long* sum) {
  const Part part = parts[blockIdx.x];
  uint64_t own = 0;
  for (uint64_t begin = threadIdx.x; begin < part.count; begin += kThreads * kWordsAtOnce) {
    uint64_t words[kWordsAtOnce];
#pragma unroll
    for (int i = 0; i < kWordsAtOnce; ++i) {
      words[i] = __ldg(part.words + min(begin + i * kThreads, part.count - 1));
    }
#pragma unroll
    for (int i = 0; i < kWordsAtOnce; ++i) {
      const uint64_t word = begin + i * kThreads;
      own += word < part.count ? SummedWord(words[i], part.index + word) : 0;
    }
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    own += __shfl_xor_sync(0xffffffff, own, lanes);
  }
  if (threadIdx.x % 32 == 0) atomicAdd(sum, own);
}

}  // namespace

WordAdder::WordAdder(Memory parts, Memory result, DeviceMemory sum)
    : parts_(std::move(parts)), result_(std::move(result)), sum_(std::move(sum)) {}

absl::StatusOr<std::unique_ptr<WordAdder>> WordAdder::Create() {
  absl::StatusOr<Memory> parts = PinnedMemory().Allocate(kMaxParts * sizeof(Part));
  absl::StatusOr<Memory> result = PinnedMemory().Allocate(sizeof(uint64_t));
  absl::StatusOr<DeviceMemory> sum = DeviceMemory::Allocate(sizeof(uint64_t));
  for (const absl::Status& status : {parts.status(), result.status(), sum.status()}) {
    if (!status.ok()) {
      return status;
    }
  }
  return std::unique_ptr<WordAdder>(
      new WordAdder(*std::move(parts), *std::move(result), *std::move(sum)));
}

absl::Status WordAdder::Launch(cudaStream_t stream, size_t count) const {
  AddKernel<<<static_cast<uint32_t>(count), kThreads, 0, stream>>>(parts_.as<const Part>(),
                                                                   sum_.as<unsigned long long>());
  return ToStatus(cudaGetLastError(), "add up words");
}

absl::StatusOr<uint64_t> WordAdder::Add(cudaStream_t stream,
                                        std::span<const std::span<const std::byte>> pieces) {
  if (absl::Status status = CheckWords(pieces); !status.ok()) {
    return status;
  }
  absl::Status status =
      ToStatus(cudaMemsetAsync(sum_.data(), 0, sum_.size(), stream), "begin a sum of words");
  Part* const parts = parts_.as<Part>();
  size_t count = 0;
  uint64_t index = 0;
  for (const std::span<const std::byte> piece : pieces) {
    const auto* words = reinterpret_cast<const uint64_t*>(piece.data());
    for (uint64_t left = piece.size() / kSummedWordBytes; left > 0 && status.ok();) {
      const uint64_t taken = std::min(left, kPartWords);
      parts[count++] = {.words = words, .count = taken, .index = index};
      words += taken;
      index += taken;
      left -= taken;
      if (count == kMaxParts) {
        status = Launch(stream, std::exchange(count, 0));
        // The parts are read where they lie.
        status.Update(ToStatus(cudaStreamSynchronize(stream), "add up words"));
      }
    }
  }
  if (status.ok() && count > 0) {
    status = Launch(stream, count);
  }
  if (status.ok()) {
    status = ToStatus(
        cudaMemcpyAsync(result_.data(), sum_.data(), sum_.size(), cudaMemcpyDeviceToHost, stream),
        "copy a sum of words");
  }
  // Also behind an error: nothing of the caller's is read any more.
  status.Update(ToStatus(cudaStreamSynchronize(stream), "add up words"));
  if (!status.ok()) {
    return status;
  }
  return *result_.as<uint64_t>();
}

}  // namespace baton::kernels::cuda
