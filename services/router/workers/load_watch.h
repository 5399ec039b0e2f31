// One connection's GetServerInfo and WatchLoads.
#pragma once

#include <functional>
#include <memory>

#include "services/router/workers/worker.h"

namespace baton::router {

// Asks `worker` what it is, then follows its loads, reporting to OnInfo, OnLoads and, exactly once,
// OnWatchEnd. Returns a function that ends it early; it may be called at any time, from any thread.
std::function<void()> StartLoadWatch(const std::shared_ptr<Worker>& worker);

}  // namespace baton::router
