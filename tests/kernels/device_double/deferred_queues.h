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

  // So many of the first rank, and two of the last.
  DeferredQueues(int32_t count, size_t workspace_bytes);
  ~DeferredQueues() override;

  SideQueueSizes sizes(SideRank rank) const override {
    return {.count = rank == SideRank::kFirst ? count_ : kLastCount,
            .workspace_bytes = workspace_bytes_};
  }
  absl::StatusOr<ExecContext> Fork(const ExecContext& main, SideRank rank, int32_t index) override;
  absl::Status Pace() override {
    ++paces_;
    return absl::OkStatus();
  }
  absl::Status Await(int32_t index) override;
  absl::Status Join() override;

  // How many queues had something to do at a Join at most.
  int32_t most_queues() const { return most_queues_; }

  // Calls of Pace.
  int64_t paces() const { return paces_; }

  // Puts `work` off if `context` is that of a side queue, else does it.
  static absl::Status Do(const ExecContext& context, Work work);
  // Does what was put off so far if `context` is that of a side queue.
  static absl::Status Finish(const ExecContext& context);

 private:
  class Queue;

  static constexpr int32_t kLastCount = 2;

  Queue& QueueOf(SideRank rank, int32_t index) const {
    const auto first = static_cast<size_t>(rank == SideRank::kFirst ? 0 : count_);
    return *queues_[first + static_cast<size_t>(index % sizes(rank).count)];
  }

  const int32_t count_;
  const size_t workspace_bytes_;
  std::vector<std::unique_ptr<Queue>> queues_;  // those of the first rank, then those of the last
  int32_t most_queues_ = 0;
  int64_t paces_ = 0;
};

}  // namespace baton::kernels
