// A recorded day of requests: when they came and how long they were.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "services/loadtest/arrivals/arrival_schedule.h"

namespace baton::loadtest {

// A line of a trace in Mooncake's form:
// {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
struct TraceEntry {
  absl::Duration at;  // from the first entry; "timestamp" counts milliseconds
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  // The prompt's blocks of kTraceBlockTokens tokens; equal ids stand for equal blocks. May be
  // missing.
  std::vector<uint64_t> blocks = {};
};

inline constexpr int64_t kTraceBlockTokens = 512;

// One line; the time is the line's own timestamp. kInvalidArgument names the field that is missing
// or wrong.
absl::StatusOr<TraceEntry> ParseTraceEntry(std::string_view line);

// A whole file (JSONL, gzip allowed) with ascending timestamps; `speed` > 1 replays it faster.
// Errors name file and line. At most 10,000,000 entries.
absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& path, double speed);

// The times of `trace`.
std::unique_ptr<ArrivalSchedule> MakeTraceSchedule(const std::vector<TraceEntry>& trace);

}  // namespace baton::loadtest
