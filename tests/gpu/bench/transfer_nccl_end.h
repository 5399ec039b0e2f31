// What receives over NCCL in a process.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "common/transport/nccl/nccl_transport.h"
#include "kernels/core/device_link.h"
#include "kernels/core/landing_memory.h"
#include "tests/unit/transport/transport_pair.h"

namespace baton::kernels::cuda {

// A transport whose windows are of `memory`, and the server that its peers call.
class TransferNcclEnd {
 public:
  // `links` are of the device that `memory` is of.
  static absl::StatusOr<std::unique_ptr<TransferNcclEnd>> Open(std::unique_ptr<DeviceLinks> links,
                                                               LandingMemory& memory);

  transport::NcclTransport& transport() { return *transport_; }

 private:
  TransferNcclEnd() = default;

  std::unique_ptr<DeviceLinks> links_;
  std::unique_ptr<transport::NcclTransport> transport_;
  std::unique_ptr<transport::LinkService> service_;
  transport::LocalServer server_;
};

}  // namespace baton::kernels::cuda
