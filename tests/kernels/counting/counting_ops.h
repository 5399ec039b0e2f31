// The bytes that an op reads and writes, counted while it runs.
//
// CountingOps is the portable CPU back end, compiled with a call in front of every access to memory
// (the compiler's instrumentation for ThreadSanitizer, without its run time) in a library of its
// own. What is counted is what the code did, whatever a formula says. The other instruction sets
// run the same drivers over the same layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"

namespace baton::kernels {

// Distinct bytes, however often each was touched.
struct ByteCount {
  int64_t read = 0;     // that the work had not written before
  int64_t written = 0;  // scratch memory included

  int64_t total() const { return read + written; }
};

const OpTable& CountingOps();

// Runs `work` on this thread and counts what CountingOps touches in it, the stack left out; with
// `within`, only what lies there. Ops have to run in a pool of one thread. Not reentrant.
ByteCount CountBytes(const std::function<void()>& work, std::span<const std::byte> within = {});

}  // namespace baton::kernels
