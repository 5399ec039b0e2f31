// Many pieces of memory copied at once.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <span>

#include "absl/status/status.h"

#include "kernels/core/copy_queue.h"

namespace baton::kernels::cuda {

// What a kernel moves at a time.
inline constexpr size_t kMovedUnitBytes = 16;

// Copies `pieces`, which may be changed at once, behind what is on the stream: within the device,
// or to pinned memory. The copy engine works beside kernels, but the host takes ten microseconds to
// begin a copy: one kernel moves all pieces that are of whole, aligned units, but large ones to
// memory of the host. A share of the multiprocessors does it, so that a step beside it loses
// little.
absl::Status MovePieces(cudaStream_t stream, std::span<const CopyQueue::Piece> pieces);

}  // namespace baton::kernels::cuda
