// The stages of a load, each with its own figures.
#pragma once

#include <vector>

#include "nlohmann/json.hpp"

#include "services/loadtest/measure/run_result.h"

namespace baton::loadtest {

// [{"from_s", "to_s", "rate", "end_rate", "due", "succeeded", "failed", "unsent", "ttft_p50",
// "ttft_p99", "tpot_p99", "itl_p99", "good": {SLO: share of those due}}]: a request belongs to the
// stage in which it was due, also if it could not be sent. Empty for loads without stages. Requests
// of the warm-up and those that were disturbed on purpose are left out.
nlohmann::ordered_json StageFigures(const RunResult& run);

}  // namespace baton::loadtest
