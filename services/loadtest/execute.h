// Runs a load from the first connection to the last scrape.
#pragma once

#include "absl/status/statusor.h"

#include "common/rpc/shutdown_signal.h"
#include "services/loadtest/load_options.h"
#include "services/loadtest/measure/run_result.h"

namespace baton::loadtest {

// Blocks until the load is over. A first signal ends it early with what there is, a second one also
// cancels open requests; `signal` may be null. Failed requests are results, not errors; an error
// says why nothing could be sent: bad options, files that can't be read, a router that does not
// answer.
absl::StatusOr<RunResult> Execute(const LoadOptions& options, rpc::ShutdownSignal* signal);

}  // namespace baton::loadtest
