// What an op needs besides its parameters: threads and scratch memory.
#pragma once

#include "kernels/core/buffer.h"
#include "kernels/core/thread_pool.h"

namespace baton::kernels {

// Owned by the executor thread; ops called with the same context run one after another. Ops never
// allocate: scratch comes from the workspace, whose size the caller fixes beforehand.
struct ExecContext {
  // Compute threads; never null.
  ThreadPool* pool = nullptr;
  // Scratch memory of one op call; contents do not survive the call.
  Buffer* workspace = nullptr;
};

}  // namespace baton::kernels
