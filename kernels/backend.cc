#include "kernels/backend.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/core/device_link.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/side_queues.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_session.h"
#include "kernels/ops/op_table.h"
#include "kernels/select.h"

namespace baton::kernels {
namespace {

// Scratch memory of the device: what the largest op wants, copies of a long prompt's keys.
constexpr size_t kDeviceWorkspaceBytes = size_t{1} << 30;
// Layers that are coded at the same time: a factorization of 8K tokens takes as long as two layers
// of their prefill (docs/kernels/shadowkv.md), and SwiftKV brings half of all layers at once.
// Gram matrices and vectors of four layers of 1,024 columns, sums and keys take 81 MiB.
constexpr SideQueueSizes kSideQueues = {.count = 8, .workspace_bytes = size_t{88} << 20};
// What of layers depends on no factors: scores of chunks, 512 KiB for 128K tokens, and clusters.
constexpr SideQueueSizes kLastQueues = {.count = 4, .workspace_bytes = size_t{16} << 20};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> Backend::Open(std::string_view device, int threads) {
  absl::StatusOr<const OpTable*> ops = SelectOps(device);
  if (!ops.ok()) {
    return ops.status();
  }
  std::unique_ptr<Backend> backend(new Backend(**ops, threads));
  if (*ops != CudaOps()) {
    backend->exec_ = {.pool = &backend->pool_, .workspace = &backend->workspace_};
    return backend;
  }
  absl::StatusOr<std::unique_ptr<cuda::Session>> session = cuda::OpenSession(
      {.workspace_bytes = kDeviceWorkspaceBytes, .side = kSideQueues, .last_side = kLastQueues});
  if (!session.ok()) {
    return session.status();
  }
  backend->session_ = *std::move(session);
  backend->exec_ = {.pool = &backend->pool_,
                    .device_workspace_bytes = kDeviceWorkspaceBytes,
                    .queue = &backend->session_->queue(),
                    .memory = &backend->session_->memory(),
                    .side = backend->session_->side(),
                    .copies = &backend->session_->copies(),
                    .graphs = &backend->session_->graphs()};
  return backend;
}

std::vector<cuda::FoundLibrary> Backend::LoadLibraries() const {
  return session_ == nullptr ? std::vector<cuda::FoundLibrary>() : session_->LoadLibraries();
}

absl::StatusOr<int64_t> Backend::MemoryLeft(double share) const {
  if (session_ == nullptr) {
    return absl::FailedPreconditionError("memory of the host is not divided beforehand");
  }
  return session_->MemoryLeft(share);
}

absl::StatusOr<std::unique_ptr<DeviceLinks>> Backend::MakeLinks() const {
  if (session_ == nullptr) {
    return absl::FailedPreconditionError("the host has no links between devices");
  }
  return session_->MakeLinks();
}

}  // namespace baton::kernels
