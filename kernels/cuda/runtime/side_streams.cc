#include "kernels/cuda/runtime/side_streams.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/core/op_graphs.h"
#include "kernels/core/side_queues.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/device_space.h"

namespace baton::kernels::cuda {
namespace {

// DeviceQueue::Create. The main queue has rank 0.
int32_t QueueRank(SideRank rank, int32_t index) {
  if (rank == SideRank::kLast) {
    return 3;
  }
  return index % SideQueues::kTurn < SideQueues::kTurn / 2 ? 1 : 2;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SideStreams>> SideStreams::Create(DeviceQueue& main,
                                                                 const SideQueueSizes& first,
                                                                 const SideQueueSizes& last) {
  std::unique_ptr<SideStreams> side(new SideStreams(main, first, last));
  for (int32_t i = 0; i < first.count + last.count; ++i) {
    const SideRank rank = i < first.count ? SideRank::kFirst : SideRank::kLast;
    absl::StatusOr<std::unique_ptr<DeviceQueue>> queue =
        DeviceQueue::Create(side->sizes(rank).workspace_bytes, QueueRank(rank, i));
    if (!queue.ok()) {
      return queue.status();
    }
    Stream& stream = side->streams_.emplace_back();
    stream.queue = *std::move(queue);
    stream.space = std::make_unique<DeviceSpace>(*stream.queue);
  }
  return side;
}

SideQueueSizes SideStreams::sizes(SideRank rank) const {
  return rank == SideRank::kFirst ? first_ : last_;
}

SideStreams::Stream& SideStreams::StreamOf(SideRank rank, int32_t index) {
  const auto first = static_cast<size_t>(rank == SideRank::kFirst ? 0 : first_.count);
  return streams_[first + static_cast<size_t>(index % sizes(rank).count)];
}

absl::StatusOr<ExecContext> SideStreams::Fork(const ExecContext& main,
                                              SideRank rank,
                                              int32_t index) {
  Stream& stream = StreamOf(rank, index);
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
  context.device_workspace_bytes = sizes(rank).workspace_bytes;
  context.queue = stream.queue.get();
  context.memory = stream.space.get();
  context.side = nullptr;
  context.graphs = nullptr;
  return context;
}

absl::Status SideStreams::Pace() { return marks_.Replace(main_.stream()); }

absl::Status SideStreams::Await(int32_t index) {
  return order_.Wait(main_.stream(), StreamOf(SideRank::kFirst, index).queue->stream());
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
