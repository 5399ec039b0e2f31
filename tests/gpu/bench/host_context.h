// The CPU back end's side of a comparison.
#pragma once

#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"

namespace baton::kernels::cuda {

// Threads and workspace for any op of these benchmarks.
class HostContext {
 public:
  HostContext()
      : threads_(kThreads), workspace_(CpuOps().workspace_bytes(kThreads, 1 << 16, 256)) {}

  // Borrows this object.
  ExecContext get() { return {.pool = &threads_, .workspace = &workspace_}; }

 private:
  static constexpr int kThreads = 16;

  ThreadPool threads_;
  Buffer workspace_;
};

}  // namespace baton::kernels::cuda
