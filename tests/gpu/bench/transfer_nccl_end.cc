#include "tests/gpu/bench/transfer_nccl_end.h"

#include <memory>
#include <utility>

#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/transport/nccl/nccl_transport.h"
#include "kernels/core/device_link.h"
#include "kernels/core/landing_memory.h"
#include "tests/unit/transport/transport_pair.h"

namespace baton::kernels::cuda {

absl::StatusOr<std::unique_ptr<TransferNcclEnd>> TransferNcclEnd::Open(
    std::unique_ptr<DeviceLinks> links, LandingMemory& memory) {
  std::unique_ptr<TransferNcclEnd> end(new TransferNcclEnd());
  end->links_ = std::move(links);
  BATON_ASSIGN_OR_RETURN(
      end->transport_,
      transport::NcclTransport::Make({.links = end->links_.get(), .memory = &memory}));
  end->service_ = std::make_unique<transport::LinkService>(end->transport_.get());
  end->transport_->set_address(end->server_.Start(*end->service_));
  return end;
}

}  // namespace baton::kernels::cuda
