// What an op needs besides its parameters: threads and scratch memory, or a queue of the device.
#pragma once

#include <cstddef>

#include "kernels/core/buffer.h"
#include "kernels/core/memory.h"
#include "kernels/core/thread_pool.h"

namespace baton::kernels {

namespace cuda {
class DeviceQueue;
}  // namespace cuda

class CopyQueue;
class OpGraphs;
class SideQueues;

// Owned by the executor thread; ops called with the same context run one after another. Ops never
// allocate: scratch comes from the workspace, whose size the caller fixes beforehand.
struct ExecContext {
  // Compute threads; never null on a CPU back end.
  ThreadPool* pool = nullptr;
  // Scratch memory of one op call; contents do not survive the call. Null on a device, whose own is
  // of a fixed size.
  Buffer* workspace = nullptr;
  size_t device_workspace_bytes = 0;
  // The CUDA back end: where an op puts its work (kernels/cuda/runtime/device_queue.h). An op
  // returns before its work is done.
  cuda::DeviceQueue* queue = nullptr;
  // Where the memory of ops comes from; never null.
  MemorySpace* memory = &HostMemory();
  // Queues beside that one (kernels/core/side_queues.h); null: none.
  SideQueues* side = nullptr;
  // Copies to the host that outlast a step (kernels/core/copy_queue.h); null on the host.
  CopyQueue* copies = nullptr;
  // Launches many ops of that queue at once (kernels/core/op_graphs.h); null: never.
  OpGraphs* graphs = nullptr;
};

}  // namespace baton::kernels
