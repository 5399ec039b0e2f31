#include "kernels/backend.h"

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_session.h"
#include "kernels/ops/op_table.h"
#include "kernels/select.h"

namespace baton::kernels {
namespace {

// Scratch memory of the device: what the largest op wants, copies of a long prompt's keys.
constexpr size_t kDeviceWorkspaceBytes = size_t{1} << 30;

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
  absl::StatusOr<std::unique_ptr<cuda::Session>> session = cuda::OpenSession(kDeviceWorkspaceBytes);
  if (!session.ok()) {
    return session.status();
  }
  backend->session_ = *std::move(session);
  backend->exec_ = {.pool = &backend->pool_,
                    .device_workspace_bytes = kDeviceWorkspaceBytes,
                    .queue = &backend->session_->queue(),
                    .memory = &backend->session_->memory()};
  return backend;
}

}  // namespace baton::kernels
