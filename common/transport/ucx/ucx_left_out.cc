// In place of the back end, in a build without UCX.
#include <memory>

#include "common/transport/ucx/ucx_transport.h"

namespace baton::transport {

bool UcxTransport::available() { return false; }

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Make(
    const UcxTransportOptions& /*options*/) {
  return absl::UnimplementedError(
      "this build has no UCX: build with libucx-dev and -DBATON_UCX=ON, or leave ucx out of "
      "--transports");
}

}  // namespace baton::transport
