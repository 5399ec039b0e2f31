// A device in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/core/copy_queue.h"
#include "kernels/core/device_link.h"
#include "kernels/core/memory.h"
#include "kernels/core/op_graphs.h"
#include "kernels/core/side_queues.h"

namespace baton::kernels::cuda {

class DeviceQueue;

// A library that ops look for when they need it.
struct FoundLibrary {
  std::string_view name;  // a literal
  // Version and file, for logs; or why there is none that will do.
  absl::StatusOr<std::string> description;
};

// Owns the queue on which ops of the current device are put, its graphs and memory space, and
// queues of ops and copies beside it. Belongs to the executor thread.
class Session {
 public:
  virtual ~Session() = default;
  virtual DeviceQueue& queue() = 0;
  virtual MemorySpace& memory() = 0;
  // Null without.
  virtual SideQueues* side() = 0;
  virtual CopyQueue& copies() = 0;
  virtual OpGraphs& graphs() = 0;
  // Loads what the queue's ops need of the machine, so that none of them has to.
  virtual std::vector<FoundLibrary> LoadLibraries() = 0;
  // Bytes that are free of `share` of the device's memory.
  virtual absl::StatusOr<int64_t> MemoryLeft(double share) const = 0;
  // Links of the device (nccl_links.h).
  virtual absl::StatusOr<std::unique_ptr<DeviceLinks>> MakeLinks() const = 0;
};

struct SessionSizes {
  size_t workspace_bytes = 0;  // scratch memory of one op
  SideQueueSizes side = {};    // of the first rank; none of either: no queues beside the main one
  SideQueueSizes last_side = {};
};

// kFailedPrecondition without a device that this build has code for, kResourceExhausted when it
// lacks the memory.
absl::StatusOr<std::unique_ptr<Session>> OpenSession(const SessionSizes& sizes);

}  // namespace baton::kernels::cuda
