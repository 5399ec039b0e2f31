// Queues of a device beside the one of an ExecContext.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"

namespace baton::kernels {

// Whose work goes first where several queues wait for the device, behind the main one's.
enum class SideRank { kFirst, kLast };

// Queues of one rank.
struct SideQueueSizes {
  int32_t count = 0;
  size_t workspace_bytes = 0;  // scratch memory of one op on each of them
};

// For work that nothing of the same step reads: it runs while the main queue goes on, and work on
// several queues at the same time. Belongs to the executor thread.
class SideQueues {
 public:
  // Of so many queues of the first rank in turn, from a multiple of it on, the first half goes
  // before the rest: of work that they begin together half is done, and can be sent, well before
  // the other half, which is done no later than if all were alike (docs/kernels/shadowkv.md).
  static constexpr int32_t kTurn = 4;

  virtual ~SideQueues() = default;

  // At least one queue of each rank.
  virtual SideQueueSizes sizes(SideRank rank) const = 0;
  // `main` with queue `index` of a rank (any, modulo count) in place of its own. What is called
  // with it runs in turn, once all is done that was called on the main queue before Fork. Valid
  // until Join.
  virtual absl::StatusOr<ExecContext> Fork(const ExecContext& main,
                                           SideRank rank,
                                           int32_t index) = 0;
  // Between the layers of steps that fork: returns when the main queue has come to where it was at
  // the call before the last, so that whoever calls its ops is two layers ahead of it at most. On a
  // device queues that wait for the main one from far ahead are in its way: each of its kernels
  // begins 2 us later (docs/kernels/shadowkv.md).
  virtual absl::Status Pace() = 0;
  // What is called on the main queue from now on waits for what was called on queue `index` of the
  // first rank so far.
  virtual absl::Status Await(int32_t index) = 0;
  // What is called on the main queue from now on waits for all that was called on side queues.
  virtual absl::Status Join() = 0;
};

}  // namespace baton::kernels
