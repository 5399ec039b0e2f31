// Copies from and to the device on a stream of their own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/copy_queue.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/stream_order.h"

namespace baton::kernels::cuda {

// Moves are those of piece_mover.h, marks are events. Of the device that is current where it is
// made; other threads' calls make it theirs.
class CopyStream final : public CopyQueue {
 public:
  // Of the current device.
  static absl::StatusOr<std::unique_ptr<CopyStream>> Create();
  // Waits for what runs on it.
  ~CopyStream() override;

  absl::Status Follow(const ExecContext& exec) override;
  absl::Status StartDownload(std::byte* target, const std::byte* source, size_t bytes) override;
  absl::Status StartMoves(std::span<const Piece> pieces) override;
  absl::StatusOr<std::unique_ptr<Mark>> MakeMark() override;

 private:
  CopyStream(int device, cudaStream_t stream) : device_(device), stream_(stream) {}

  const int device_;
  const cudaStream_t stream_;
  StreamOrder order_;
};

}  // namespace baton::kernels::cuda
