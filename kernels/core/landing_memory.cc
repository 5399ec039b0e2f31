#include "kernels/core/landing_memory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/shared_blocks.h"
#include "kernels/core/shared_memory.h"
#include "kernels/core/word_sum.h"

namespace baton::kernels {
namespace {

class HostLandingMemory final : public LandingMemory {
 public:
  bool is_host() const override { return true; }
  absl::Status Write(std::byte* target, std::span<const std::byte> source) override {
    if (!source.empty()) {
      std::memcpy(target, source.data(), source.size());
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<SharedMapping>> Import(int fd, size_t size) override {
    return MapShared(fd, size);
  }
  absl::Status Pull(std::byte* target, std::span<const std::byte> source) override {
    return Write(target, source);
  }
  absl::Status Wait() override { return absl::OkStatus(); }
  absl::StatusOr<uint64_t> WordSum(std::span<const std::span<const std::byte>> pieces) override {
    return AddWords(pieces);
  }
  absl::Status ReadAll(std::span<const LandedRead> reads) override {
    for (const LandedRead& read : reads) {
      std::copy_n(read.source, read.target.size(), read.target.begin());
    }
    return absl::OkStatus();
  }
};

}  // namespace

LandingMemory& HostLanding() {
  static HostLandingMemory* const kMemory = new HostLandingMemory;
  return *kMemory;
}

}  // namespace baton::kernels
