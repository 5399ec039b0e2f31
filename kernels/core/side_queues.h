// Queues of a device beside the one of an ExecContext.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"

namespace baton::kernels {

// For work that nothing of the same step reads: it runs while the main queue goes on, and work on
// several queues at the same time. Belongs to the executor thread.
class SideQueues {
 public:
  virtual ~SideQueues() = default;

  // At least 1.
  virtual int32_t count() const = 0;
  // Scratch memory of one op on each of them.
  virtual size_t workspace_bytes() const = 0;
  // `main` with queue `index` (any, modulo count) in place of its own. What is called with it runs
  // in turn, once all is done that was called on the main queue before Fork. Valid until Join.
  virtual absl::StatusOr<ExecContext> Fork(const ExecContext& main, int32_t index) = 0;
  // What is called on the main queue from now on waits for what was called on queue `index` so far.
  virtual absl::Status Await(int32_t index) = 0;
  // What is called on the main queue from now on waits for all that was called on side queues.
  virtual absl::Status Join() = 0;
};

}  // namespace baton::kernels
