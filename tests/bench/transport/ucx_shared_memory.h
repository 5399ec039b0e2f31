// Puts through UCX's shared memory, a peer of the transports.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::transport {

// Two UCX workers of this process that have nothing but UCX's shared memory between them, one of
// which puts into memory of the other. Without error handling, which UCX 1.13 doesn't have there
// and the project's workers need (docs/adr/0014-ucx-granted-slots.md), so none of them uses it.
// Not thread-safe.
class UcxSharedMemory {
 public:
  // `target` is borrowed. UCX's error where it has no shared memory; kUnavailable in a build that
  // has no UCX.
  static absl::StatusOr<std::unique_ptr<UcxSharedMemory>> Create(std::span<std::byte> target);
  virtual ~UcxSharedMemory() = default;

  // Begins to put `source` to `offset` of the target.
  virtual absl::Status Put(std::span<const std::byte> source, size_t offset) = 0;
  // Waits until everything that was put is there.
  virtual absl::Status Flush() = 0;
};

}  // namespace baton::transport
