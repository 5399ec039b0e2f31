// The figures of a run, as docs/load-testing.md lists them.
#pragma once

#include "nlohmann/json.hpp"

#include "services/loadtest/measure/run_result.h"

namespace baton::loadtest {

// The value of "format" in a summary; a reader refuses others.
inline constexpr char kSummaryFormat[] = "baton-loadtest/1";

// A summary: times in milliseconds where the name says so, else seconds. Latencies and goodput are
// of requests that nothing was done to on purpose; latencies of those that ended well.
nlohmann::ordered_json Summarize(const RunResult& run);

}  // namespace baton::loadtest
