// Streams beside the main one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/core/side_queues.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/device_space.h"
#include "kernels/cuda/runtime/stream_marks.h"
#include "kernels/cuda/runtime/stream_order.h"

namespace baton::kernels::cuda {

// Queues whose order with the main one is told by events. The main one is shared (DeviceQueue) from
// the first Fork to Join.
class SideStreams final : public SideQueues {
 public:
  // Of the current device; `main` is borrowed. kResourceExhausted without memory.
  static absl::StatusOr<std::unique_ptr<SideStreams>> Create(DeviceQueue& main,
                                                             const SideQueueSizes& first,
                                                             const SideQueueSizes& last);
  // Waits for what runs on them.
  ~SideStreams() override = default;

  SideQueueSizes sizes(SideRank rank) const override;
  absl::StatusOr<ExecContext> Fork(const ExecContext& main, SideRank rank, int32_t index) override;
  absl::Status Pace() override;
  absl::Status Await(int32_t index) override;
  absl::Status Join() override;

 private:
  struct Stream {
    std::unique_ptr<DeviceQueue> queue;
    std::unique_ptr<DeviceSpace> space;
    bool forked = false;  // since the last Join
  };

  SideStreams(DeviceQueue& main, const SideQueueSizes& first, const SideQueueSizes& last)
      : main_(main), first_(first), last_(last) {}
  Stream& StreamOf(SideRank rank, int32_t index);

  DeviceQueue& main_;
  const SideQueueSizes first_;
  const SideQueueSizes last_;
  StreamOrder order_;
  StreamMarks<2> marks_;         // of the main one
  std::vector<Stream> streams_;  // those of the first rank, then those of the last
};

}  // namespace baton::kernels::cuda
