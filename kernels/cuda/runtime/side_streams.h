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
#include "kernels/cuda/runtime/stream_order.h"

namespace baton::kernels::cuda {

// Queues whose order with the main one is told by events. The main one is shared (DeviceQueue) from
// the first Fork to Join.
class SideStreams final : public SideQueues {
 public:
  // Of the current device; `main` is borrowed. kResourceExhausted without memory.
  static absl::StatusOr<std::unique_ptr<SideStreams>> Create(DeviceQueue& main,
                                                             int32_t count,
                                                             size_t workspace_bytes);
  // Waits for what runs on them.
  ~SideStreams() override = default;

  int32_t count() const override { return static_cast<int32_t>(streams_.size()); }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  absl::StatusOr<ExecContext> Fork(const ExecContext& main, int32_t index) override;
  absl::Status Await(int32_t index) override;
  absl::Status Join() override;

 private:
  struct Stream {
    std::unique_ptr<DeviceQueue> queue;
    std::unique_ptr<DeviceSpace> space;
    bool forked = false;  // since the last Join
  };

  SideStreams(DeviceQueue& main, size_t workspace_bytes)
      : main_(main), workspace_bytes_(workspace_bytes) {}
  Stream& StreamOf(int32_t index) { return streams_[static_cast<size_t>(index) % streams_.size()]; }

  DeviceQueue& main_;
  const size_t workspace_bytes_;
  StreamOrder order_;
  std::vector<Stream> streams_;
};

}  // namespace baton::kernels::cuda
