// A run cut into equal parts of time.
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"

#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {

// {"bucket_s", "rows": [{"t", "scheduled", "sent", "ended", "failed", "open", "tokens", "ttft_p50",
// "ttft_p99", "itl_p50", "itl_p99"}]}, at most 75 rows from the start of the run on. Time to first
// token counts where the request was sent, gaps and tokens where they came; requests that were
// disturbed on purpose have neither of these latencies, and a row without any has null. `open` is
// the largest number of requests open at once.
nlohmann::ordered_json Timeline(const std::vector<RequestRecord>& records);

// The largest number of requests that were open at once.
int64_t MaxOpen(const std::vector<RequestRecord>& records);

}  // namespace baton::loadtest
