#include "kernels/cuda/cuda_session.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"

#include "kernels/core/memory.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/device_space.h"

namespace baton::kernels::cuda {
namespace {

class SessionImpl final : public Session {
 public:
  explicit SessionImpl(std::unique_ptr<DeviceQueue> queue)
      : queue_(std::move(queue)), space_(*queue_) {}
  DeviceQueue& queue() override { return *queue_; }
  MemorySpace& memory() override { return space_; }

 private:
  const std::unique_ptr<DeviceQueue> queue_;
  DeviceSpace space_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> OpenSession(size_t workspace_bytes) {
  absl::StatusOr<std::unique_ptr<DeviceQueue>> queue = DeviceQueue::Create(workspace_bytes);
  if (!queue.ok()) {
    return queue.status();
  }
  return std::make_unique<SessionImpl>(*std::move(queue));
}

}  // namespace baton::kernels::cuda
