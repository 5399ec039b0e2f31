#include "kernels/core/landing_memory.h"

#include <cstddef>
#include <cstring>
#include <span>

#include "absl/status/status.h"

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
  absl::Status Wait() override { return absl::OkStatus(); }
  absl::Status Read(std::span<std::byte> target, const std::byte* source) override {
    return Write(target.data(), {source, target.size()});
  }
};

}  // namespace

LandingMemory& HostLanding() {
  static HostLandingMemory* const kMemory = new HostLandingMemory;
  return *kMemory;
}

}  // namespace baton::kernels
