// Links between devices of this process that are not there: memory to memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "kernels/core/device_link.h"
#include "kernels/core/memory.h"

namespace baton::kernels {

// Like NCCL's: a move ends when both ends have called, and never when one does not.
class LocalLinks final : public DeviceLinks {
 public:
  // Slots are of `memory`, the host's or the device double's, which is borrowed.
  explicit LocalLinks(MemorySpace& memory) : memory_(memory) {}

  std::string Description() const override { return "memory of this process"; }
  absl::StatusOr<std::string> NewId() override;
  absl::StatusOr<std::unique_ptr<DeviceLink>> Open(const std::string& id,
                                                   LinkEnd end,
                                                   const LinkSizes& sizes) override;

  // From now on calls of this process's ends count as not made, as if it were stopped.
  void Freeze() { frozen_ = true; }
  // Bytes that have gone from links of this object.
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  class Link;

  MemorySpace& memory_;
  std::atomic<bool> frozen_ = false;
  std::atomic<int64_t> sent_bytes_ = 0;
};

}  // namespace baton::kernels
