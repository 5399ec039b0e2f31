// The workers of a router as JSON.
#pragma once

#include <vector>

#include "nlohmann/json.hpp"

#include "services/router/workers/worker.h"

namespace baton::router {

// The most workers that a report lists; it says how many there are.
inline constexpr size_t kMaxListedWorkers = 128;

// {"total", "ready", "listed": [...]}, prefill before decode. Names come from the workers: texts
// are cut to 200 bytes and lists to 16 entries, so that the report is bounded.
nlohmann::ordered_json WorkerReport(const std::vector<WorkerView>& workers);

}  // namespace baton::router
