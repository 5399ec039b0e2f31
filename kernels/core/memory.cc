#include "kernels/core/memory.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/buffer.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/shared_memory.h"

namespace baton::kernels {
namespace {

class HostBlock final : public Memory::Block {
 public:
  explicit HostBlock(Buffer buffer) : buffer_(std::move(buffer)) {}
  Buffer& buffer() { return buffer_; }

 private:
  Buffer buffer_;
};

class HostSpace final : public MemorySpace {
 public:
  bool is_host() const override { return true; }

  absl::StatusOr<Memory> Allocate(size_t bytes) override {
    try {
      return Adopt(Buffer(bytes));
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(absl::StrCat("the host has no ", bytes, " bytes left"));
    }
  }

  absl::StatusOr<Memory> Adopt(Buffer source) override {
    auto block = std::make_unique<HostBlock>(std::move(source));
    Buffer& buffer = block->buffer();
    std::byte* data = buffer.size() == 0 ? nullptr : buffer.data();
    return Memory(std::move(block), data, buffer.size());
  }

  absl::Status Upload(std::byte* target, const void* source, size_t bytes) override {
    return CopyBytes(target, source, bytes);
  }

  absl::Status Download(void* target, const void* source, size_t bytes) override {
    return CopyBytes(target, source, bytes);
  }

  absl::Status Copy(std::byte* target, const std::byte* source, size_t bytes) override {
    return CopyBytes(target, source, bytes);
  }

  absl::Status Zero(std::byte* target, size_t bytes) override {
    if (bytes > 0) {
      std::memset(target, 0, bytes);
    }
    return absl::OkStatus();
  }

  MemorySpace* shared() override { return &SharedHostMemory(); }

 private:
  static absl::Status CopyBytes(void* target, const void* source, size_t bytes) {
    if (bytes > 0) {
      std::memcpy(target, source, bytes);
    }
    return absl::OkStatus();
  }
};

}  // namespace

MemorySpace& MemorySpace::staging() { return HostMemory(); }

MemorySpace* MemorySpace::shared() { return nullptr; }

LandingMemory& MemorySpace::landing() { return HostLanding(); }

MemorySpace& HostMemory() {
  static HostSpace* const kSpace = new HostSpace;
  return *kSpace;
}

}  // namespace baton::kernels
