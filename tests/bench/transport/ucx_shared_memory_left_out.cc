// Where the build has no UCX.
#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "tests/bench/transport/ucx_shared_memory.h"

namespace baton::transport {

absl::StatusOr<std::unique_ptr<UcxSharedMemory>> UcxSharedMemory::Create(std::span<std::byte>) {
  return absl::UnavailableError("this build has no UCX");
}

}  // namespace baton::transport
