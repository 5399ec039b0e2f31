#include "kernels/cuda/runtime/pinned_memory.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/host_blocks.h"
#include "kernels/core/memory.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace baton::kernels::cuda {
namespace {

class PinnedBlock final : public Memory::Block {
 public:
  explicit PinnedBlock(void* data) : data_(data) {}
  ~PinnedBlock() override { cudaFreeHost(data_); }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;

 private:
  void* const data_;
};

class PinnedSpace final : public HostBlockSpace {
 public:
  absl::StatusOr<Memory> Allocate(size_t bytes) override {
    if (bytes == 0) {
      return Memory();
    }
    void* data = nullptr;
    absl::Status status = ToStatus(cudaHostAlloc(&data, bytes, cudaHostAllocDefault),
                                   absl::StrCat("allocate ", bytes, " pinned bytes of the host"));
    if (!status.ok()) {
      return status;
    }
    auto block = std::make_unique<PinnedBlock>(data);
    std::memset(data, 0, bytes);
    return Memory(std::move(block), static_cast<std::byte*>(data), bytes);
  }
};

}  // namespace

MemorySpace& PinnedMemory() {
  static PinnedSpace* const kSpace = new PinnedSpace;
  return *kSpace;
}

}  // namespace baton::kernels::cuda
