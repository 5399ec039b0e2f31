// Copies from, to and within a device that go on beside its queues, also beyond a step.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"

namespace baton::kernels {

// Copies run one after the other, in the order in which they were started. Moves may be started,
// and marks made, by any thread; everything else belongs to the executor thread.
class CopyQueue {
 public:
  // All copies that were started before it, by whichever thread.
  class Mark {
   public:
    virtual ~Mark() = default;
    // Waits for them. By any one thread.
    virtual absl::Status Wait() = 0;
  };

  struct Piece {
    std::byte* target = nullptr;
    const std::byte* source = nullptr;
    size_t bytes = 0;
  };

  virtual ~CopyQueue() = default;

  // What is started from now on, by any thread, waits for what was called on the queue of `exec` so
  // far.
  virtual absl::Status Follow(const ExecContext& exec) = 0;
  // From a block of the device to one of MemorySpace::staging(). `target` has the bytes once a mark
  // that is made afterwards has been waited for; until then `source` must stay as it is.
  virtual absl::Status StartDownload(std::byte* target, const std::byte* source, size_t bytes) = 0;
  // The same from blocks of the device to others, or to ones of MemorySpace::staging() that ops
  // read. No piece is written to where another is read or written.
  virtual absl::Status StartMoves(std::span<const Piece> pieces) = 0;
  virtual absl::StatusOr<std::unique_ptr<Mark>> MakeMark() = 0;
};

}  // namespace baton::kernels
