#include "kernels/cuda/runtime/copy_stream.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/copy_queue.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/op_graphs.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/piece_mover.h"

namespace baton::kernels::cuda {
namespace {

class EventMark final : public CopyQueue::Mark {
 public:
  explicit EventMark(cudaEvent_t event) : event_(event) {}
  ~EventMark() override { cudaEventDestroy(event_); }
  EventMark(const EventMark&) = delete;
  EventMark& operator=(const EventMark&) = delete;

  absl::Status Wait() override {
    return ToStatus(cudaEventSynchronize(event_), "copies from and to the device");
  }

 private:
  const cudaEvent_t event_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CopyStream>> CopyStream::Create() {
  int device = 0;
  cudaStream_t stream = nullptr;
  absl::Status status = ToStatus(cudaGetDevice(&device), "find the current device");
  if (status.ok()) {
    status = ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream");
  }
  if (!status.ok()) {
    return status;
  }
  return std::unique_ptr<CopyStream>(new CopyStream(device, stream));
}

CopyStream::~CopyStream() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

absl::Status CopyStream::Follow(const ExecContext& exec) {
  if (exec.graphs != nullptr) {
    if (absl::Status status = exec.graphs->Flush(); !status.ok()) {
      return status;
    }
  }
  return order_.Wait(stream_, exec.queue->stream());
}

absl::Status CopyStream::StartDownload(std::byte* target, const std::byte* source, size_t bytes) {
  return ToStatus(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, stream_),
                  "copy from the device");
}

absl::Status CopyStream::StartMoves(std::span<const Piece> pieces) {
  absl::Status status = MakeCurrent(device_);
  return status.ok() ? MovePieces(stream_, pieces) : status;
}

// Who waits sleeps: copies of a long prompt take milliseconds.
absl::StatusOr<std::unique_ptr<CopyQueue::Mark>> CopyStream::MakeMark() {
  cudaEvent_t event = nullptr;
  absl::Status status = MakeCurrent(device_);
  if (status.ok()) {
    status =
        ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
                 "create an event");
  }
  if (!status.ok()) {
    return status;
  }
  auto mark = std::make_unique<EventMark>(event);
  status = ToStatus(cudaEventRecord(event, stream_), "record an event");
  if (!status.ok()) {
    return status;
  }
  return std::unique_ptr<Mark>(std::move(mark));
}

}  // namespace baton::kernels::cuda
