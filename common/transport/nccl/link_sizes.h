// Limits of what goes over a Link stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace baton::transport::nccl {

inline constexpr uint32_t kLinkVersion = 1;
// Bytes of the host in one chunk, and pieces of any.
inline constexpr size_t kMaxCarriedBytes = size_t{1} << 20;
inline constexpr int kMaxPieces = 4096;
// What a receiver grants a sender that connects: slots take memory of its device.
inline constexpr uint64_t kMaxSlotBytes = uint64_t{256} << 20;
inline constexpr uint32_t kMaxBlocks = 32;
// A chunk that both ends have agreed on takes milliseconds; behind this time the peer is taken for
// frozen, and its kernel, which waits for it, has to go. So is a peer that gives no verdict of a
// post that was given up.
inline constexpr absl::Duration kStuck = absl::Seconds(2);

}  // namespace baton::transport::nccl
