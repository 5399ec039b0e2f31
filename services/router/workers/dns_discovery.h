// All addresses of a DNS name, asked again and again.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"

#include "services/router/workers/discovery.h"

namespace baton::router {

// `name` is host:port. Resolution runs on a thread of its own; a failed look-up keeps the last
// list.
std::unique_ptr<Discovery> MakeDnsDiscovery(const std::string& name,
                                            Discovery::OnAddresses on_addresses,
                                            absl::Duration interval);

}  // namespace baton::router
