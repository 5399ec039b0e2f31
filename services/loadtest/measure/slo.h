// Service level objectives: what counts as a good request.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {

// Both limits have to be met.
struct Slo {
  std::string name;
  double ttft_ms = 0.0;
  double tpot_ms = 0.0;
};

// A comma-separated list of operating points: `server` (2000/100 ms) and `interactive` (500/30 ms)
// are those of MLPerf inference for llama3.1-8b, `long-context` is 1500/30 ms; others are written
// TTFT/TPOT in milliseconds, such as 800/40. kInvalidArgument for anything else.
absl::StatusOr<std::vector<Slo>> ParseSlos(std::string_view text);

// Ended well, the first token within ttft_ms after its scheduled time, and tpot_ms not exceeded; an
// answer of one token has no TPOT to exceed.
bool Meets(const RequestRecord& record, const Slo& slo);

}  // namespace baton::loadtest
