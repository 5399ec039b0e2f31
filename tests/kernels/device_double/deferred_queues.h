// Side queues of the device double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/side_queues.h"

namespace baton::kernels {

// The latest that a device may be: what is called on a queue is done at Await, or at Join, the last
// queue first, or when copies are told to follow it. Who reads it before, or lets go of what it
// reads, finds out.
class DeferredQueues final : public SideQueues {
 public:
  using Work = std::function<absl::Status()>;

  DeferredQueues(int32_t count, size_t workspace_bytes);
  ~DeferredQueues() override;

  int32_t count() const override { return static_cast<int32_t>(queues_.size()); }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  absl::StatusOr<ExecContext> Fork(const ExecContext& main, int32_t index) override;
  absl::Status Await(int32_t index) override;
  absl::Status Join() override;

  // How many queues had something to do at a Join at most.
  int32_t most_queues() const { return most_queues_; }

  // Puts `work` off if `context` is that of a side queue, else does it.
  static absl::Status Do(const ExecContext& context, Work work);
  // Does what was put off so far if `context` is that of a side queue.
  static absl::Status Finish(const ExecContext& context);

 private:
  class Queue;

  Queue& QueueOf(int32_t index) const {
    return *queues_[static_cast<size_t>(index) % queues_.size()];
  }

  const size_t workspace_bytes_;
  std::vector<std::unique_ptr<Queue>> queues_;
  int32_t most_queues_ = 0;
};

}  // namespace baton::kernels
