// Many small pieces of memory copied by one kernel.
#pragma once

#include <driver_types.h>

#include <span>

#include "absl/status/status.h"

#include "kernels/core/copy_queue.h"

namespace baton::kernels::cuda {

// Whether both ends and the size are multiples of 16 bytes, which MovePieces takes.
bool IsMovable(const CopyQueue::Piece& piece);

// Copies `pieces`, which may be changed at once, behind what is on the stream: within the device,
// or to pinned memory. A share of the multiprocessors does it, so that a step beside it loses
// little.
absl::Status MovePieces(cudaStream_t stream, std::span<const CopyQueue::Piece> pieces);

}  // namespace baton::kernels::cuda
