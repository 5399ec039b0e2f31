// What /status.json says. docs/operations.md describes it; a change of a name there is a change of
// "schema".
#pragma once

#include <string>

#include "absl/time/time.h"

#include "services/router/router_core.h"

namespace baton::router {

// The router and its workers at this moment, as JSON: some 6 KB and 1 KB for each worker, and 2 MiB
// at most whatever workers say of themselves. Counters and histograms count since the process
// started. Thread-safe; takes each worker's lock for a copy, and no lock of a request.
std::string StatusReport(const RouterCore& core, absl::Time started);

}  // namespace baton::router
