// Stands in for NCCL in a build without its header.
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/device_link.h"
#include "kernels/cuda/nccl/nccl_link_options.h"
#include "kernels/cuda/nccl/nccl_links.h"

namespace baton::kernels::cuda {

absl::StatusOr<std::unique_ptr<DeviceLinks>> MakeNcclLinks(const NcclLinkOptions& /*options*/) {
  return absl::UnimplementedError("this build has no NCCL: nccl.h was not found");
}

}  // namespace baton::kernels::cuda
