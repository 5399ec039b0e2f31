#include "kernels/cuda/runtime/side_streams.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/core/op_graphs.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/device_space.h"

namespace baton::kernels::cuda {

absl::StatusOr<std::unique_ptr<SideStreams>> SideStreams::Create(DeviceQueue& main,
                                                                 int32_t count,
                                                                 size_t workspace_bytes) {
  std::unique_ptr<SideStreams> side(new SideStreams(main, workspace_bytes));
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

absl::StatusOr<ExecContext> SideStreams::Fork(const ExecContext& main, int32_t index) {
  Stream& stream = StreamOf(index);
  if (main.graphs != nullptr) {
    if (absl::Status status = main.graphs->Flush(); !status.ok()) {
      return status;
    }
  }
  if (absl::Status status = order_.Wait(stream.queue->stream(), main_.stream()); !status.ok()) {
    return status;
  }
  stream.forked = true;
  main_.set_shared(true);
  ExecContext context = main;
  context.device_workspace_bytes = workspace_bytes_;
  context.queue = stream.queue.get();
  context.memory = stream.space.get();
  context.side = nullptr;
  context.graphs = nullptr;
  return context;
}

absl::Status SideStreams::Await(int32_t index) {
  return order_.Wait(main_.stream(), StreamOf(index).queue->stream());
}

absl::Status SideStreams::Join() {
  absl::Status status;
  for (Stream& stream : streams_) {
    if (stream.forked) {
      status.Update(order_.Wait(main_.stream(), stream.queue->stream()));
      stream.forked = false;
    }
  }
  main_.set_shared(false);
  return status;
}

}  // namespace baton::kernels::cuda
