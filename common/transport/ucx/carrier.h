// What UCX chose to carry the bytes of an endpoint.
#pragma once

#include <string>
#include <string_view>

namespace baton::transport::ucx {

// "ucx/TRANSPORT" from the text of ucp_ep_print_info, TRANSPORT being that of the lane by which it
// puts ("tcp", "rc_mlx5", "sysv"); "ucx/unknown" when the text has no such lane.
std::string CarrierOf(std::string_view endpoint_info);

// Whether the carrier's puts are done by a network card: the reliable and the dynamically connected
// transports of InfiniBand and RoCE.
bool IsRdma(std::string_view carrier);

}  // namespace baton::transport::ucx
