// A device in use.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

#include "kernels/core/memory.h"

namespace baton::kernels::cuda {

class DeviceQueue;

// Owns the queue on which ops of the current device are put, and its memory space. Belongs to the
// executor thread.
class Session {
 public:
  virtual ~Session() = default;
  virtual DeviceQueue& queue() = 0;
  virtual MemorySpace& memory() = 0;
};

// `workspace_bytes`: scratch memory of one op. kFailedPrecondition without a device that this build
// has code for, kResourceExhausted when it lacks the memory.
absl::StatusOr<std::unique_ptr<Session>> OpenSession(size_t workspace_bytes);

}  // namespace baton::kernels::cuda
