// What one peer may send: slots, and the memory into which it puts.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::transport::ucx {

// Slots of equal size, each free or granted to one post. Their memory is mapped for one connection:
// unmapping it takes the right to put from that peer alone. Without memory a slot is the right to
// send so many bytes in a message. Not thread-safe; to be destroyed when the connection's endpoint
// is closed, because UCX's TCP does not ask the mapping.
class LandingSlots {
 public:
  struct Granted {
    uint16_t slot = 0;
    uint32_t generation = 0;
    bool operator==(const Granted&) const = default;
  };

  // kResourceExhausted when the memory can't be had or mapped.
  static absl::StatusOr<std::unique_ptr<LandingSlots>> Map(ucp_context_h context,
                                                           uint32_t slot_bytes,
                                                           uint16_t slots);
  // For a peer that can't put.
  static std::unique_ptr<LandingSlots> WithoutMemory(uint32_t slot_bytes, uint16_t slots);
  ~LandingSlots();
  LandingSlots(const LandingSlots&) = delete;
  LandingSlots& operator=(const LandingSlots&) = delete;

  bool has_memory() const { return !memory_.empty(); }
  uint64_t base() const { return reinterpret_cast<uint64_t>(memory_.data()); }
  const std::string& rkey() const { return rkey_; }
  uint32_t slot_bytes() const { return slot_bytes_; }
  uint16_t slots() const { return static_cast<uint16_t>(generations_.size()); }
  size_t free() const { return free_.size(); }

  // Nothing when no slot is free.
  std::optional<Granted> Take();
  // The slot must be granted and nothing may be put into it any more.
  void Return(const Granted& granted);
  // Of a slot that has memory.
  std::span<const std::byte> bytes(uint16_t slot) const;

 private:
  LandingSlots(uint32_t slot_bytes, uint16_t slots);

  const uint32_t slot_bytes_;
  ucp_context_h context_ = nullptr;
  ucp_mem_h mapping_ = nullptr;
  std::span<std::byte> memory_;
  std::string rkey_;
  std::vector<uint32_t> generations_;
  std::vector<uint16_t> free_;
};

}  // namespace baton::transport::ucx
