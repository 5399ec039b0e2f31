// The life of a worker process after it came up.
#pragma once

#include "common/rpc/shutdown_signal.h"
#include "common/worker/worker.h"

namespace baton::worker {

// Returns when a signal came and the worker is drained: running requests get drain_timeout to
// finish; a second signal ends them at once. The caller shuts the worker down.
void RunUntilSignal(Worker& worker, rpc::ShutdownSignal& signal);

}  // namespace baton::worker
