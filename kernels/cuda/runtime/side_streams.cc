#include "kernels/cuda/runtime/side_streams.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/core/op_graphs.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/device_space.h"

namespace baton::kernels::cuda {

absl::StatusOr<std::unique_ptr<SideStreams>> SideStreams::Create(const DeviceQueue& main,
                                                                 int32_t count,
                                                                 size_t workspace_bytes) {
  std::unique_ptr<SideStreams> side(new SideStreams(main, workspace_bytes));
  if (absl::Status status = ToStatus(
          cudaEventCreateWithFlags(&side->event_, cudaEventDisableTiming), "create an event");
      !status.ok()) {
    return status;
  }
  for (int32_t i = 0; i < count; ++i) {
    absl::StatusOr<std::unique_ptr<DeviceQueue>> queue =
        DeviceQueue::Create(workspace_bytes, QueuePriority::kSide);
    if (!queue.ok()) {
      return queue.status();
    }
    Stream& stream = side->streams_.emplace_back();
    stream.queue = *std::move(queue);
    stream.space = std::make_unique<DeviceSpace>(*stream.queue);
  }
  return side;
}

SideStreams::~SideStreams() {
  streams_.clear();
  if (event_ != nullptr) {
    cudaEventDestroy(event_);
  }
}

// A stream that waits for an event waits for what the event had recorded by then, so that one event
// serves all.
absl::Status SideStreams::Order(cudaStream_t earlier, cudaStream_t later) const {
  absl::Status status = ToStatus(cudaEventRecord(event_, earlier), "record an event");
  return status.ok() ? ToStatus(cudaStreamWaitEvent(later, event_, 0), "wait for an event")
                     : status;
}

absl::StatusOr<ExecContext> SideStreams::Fork(const ExecContext& main, int32_t index) {
  Stream& stream = StreamOf(index);
  if (main.graphs != nullptr) {
    if (absl::Status status = main.graphs->Flush(); !status.ok()) {
      return status;
    }
  }
  if (absl::Status status = Order(main_.stream(), stream.queue->stream()); !status.ok()) {
    return status;
  }
  stream.forked = true;
  ExecContext context = main;
  context.device_workspace_bytes = workspace_bytes_;
  context.queue = stream.queue.get();
  context.memory = stream.space.get();
  context.side = nullptr;
  context.graphs = nullptr;
  return context;
}

absl::Status SideStreams::Await(int32_t index) {
  return Order(StreamOf(index).queue->stream(), main_.stream());
}

absl::Status SideStreams::Join() {
  absl::Status status;
  for (Stream& stream : streams_) {
    if (stream.forked) {
      status.Update(Order(stream.queue->stream(), main_.stream()));
      stream.forked = false;
    }
  }
  return status;
}

}  // namespace baton::kernels::cuda
