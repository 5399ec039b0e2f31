// The pages that a router serves beside /metrics.
#pragma once

#include <vector>

#include "common/http/page_server.h"
#include "services/router/router_core.h"

namespace baton::router {

// "/", for people, and "/status.json", which it polls. However many look, the report is made anew
// every half second at most. `core` is borrowed and must outlive the pages.
std::vector<http::Page> StatusPages(const RouterCore& core);

}  // namespace baton::router
