// Bytes from the device of one process to that of another, by calls that both make (NCCL).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::kernels {

enum class LinkEnd : uint8_t { kSender, kReceiver };

struct LinkSizes {
  size_t slot_bytes = size_t{32} << 20;
  // Thread blocks that a transfer may take of the device (NCCL maxCTAs). NCCL gives half of them to
  // a message of up to 32 MiB.
  int32_t max_blocks = 16;
  bool operator==(const LinkSizes&) const = default;
};

// One end of a pair. Bytes go from a slot of the sender to the same slot of the receiver: the n-th
// Send meets the n-th Receive, which must name the same slot and size. A call that does not meet
// its counterpart holds `max_blocks` of the device until the link is destroyed, so that both ends
// agree on every one before they make it. Not thread-safe.
class DeviceLink {
 public:
  static constexpr size_t kSlots = 4;

  // Ends what is under way, whatever the peer does.
  virtual ~DeviceLink() = default;

  // Goes on connecting; true once bytes can go. To be called until then, on both ends. An error is
  // final.
  virtual absl::StatusOr<bool> Connected() = 0;
  // Device memory; the receiver's is read once the slot is idle behind a Receive.
  virtual std::span<const std::byte> slot(size_t index) const = 0;
  // Copies bytes of the device into an idle slot, one behind the other; they have been read when
  // this returns.
  virtual absl::Status Load(size_t index, std::span<const std::span<const std::byte>> pieces) = 0;
  virtual absl::Status Send(size_t index, size_t size) = 0;
  virtual absl::Status Receive(size_t index, size_t size) = 0;
  // Whether nothing goes on in the slot. An error is final.
  virtual absl::StatusOr<bool> Idle(size_t index) = 0;
};

// Makes links of one device. Thread-safe.
class DeviceLinks {
 public:
  virtual ~DeviceLinks() = default;
  // Of the library that carries the bytes, for logs.
  virtual std::string Description() const = 0;
  // Opaque; names a pair, made by one end and given to the other.
  virtual absl::StatusOr<std::string> NewId() = 0;
  // An end of the pair, which connects in the background. Both ends have the same sizes.
  // kInvalidArgument for an id that is none, kResourceExhausted without memory.
  virtual absl::StatusOr<std::unique_ptr<DeviceLink>> Open(const std::string& id,
                                                           LinkEnd end,
                                                           const LinkSizes& sizes) = 0;
};

}  // namespace baton::kernels
