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

#include "kernels/core/buffer.h"
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

// Copies within the host are those of HostMemory.
class PinnedSpace final : public MemorySpace {
 public:
  bool is_host() const override { return true; }

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

  absl::StatusOr<Memory> Adopt(Buffer source) override {
    absl::StatusOr<Memory> memory = Allocate(source.size());
    if (memory.ok() && source.size() > 0) {
      std::memcpy(memory->data(), source.data(), source.size());
    }
    return memory;
  }

  absl::Status Upload(std::byte* target, const void* source, size_t bytes) override {
    return HostMemory().Upload(target, source, bytes);
  }
  absl::Status Download(void* target, const void* source, size_t bytes) override {
    return HostMemory().Download(target, source, bytes);
  }
  absl::Status Zero(std::byte* target, size_t bytes) override {
    return HostMemory().Zero(target, bytes);
  }
};

}  // namespace

MemorySpace& PinnedMemory() {
  static PinnedSpace* const kSpace = new PinnedSpace;
  return *kSpace;
}

}  // namespace baton::kernels::cuda
