// Latencies of one request, as `vllm bench serve` defines them, in milliseconds.
#pragma once

#include <cstdint>
#include <optional>

#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {

// Tokens that arrived.
int64_t TokenCount(const RequestRecord& record);

// From sending to the first message with a token, or to the end of an answer that has none (a stop
// token is not delivered); nothing when neither came.
std::optional<double> TtftMs(const RequestRecord& record);
// The same from the scheduled time on: what a user waited who does not care why it was sent late.
std::optional<double> ScheduledTtftMs(const RequestRecord& record);
// (last token - first token) / (tokens - 1); nothing with fewer than two tokens.
std::optional<double> TpotMs(const RequestRecord& record);
// From sending, and from the scheduled time, to the message that ends the answer; nothing when it
// did not come.
std::optional<double> LatencyMs(const RequestRecord& record);
std::optional<double> ScheduledLatencyMs(const RequestRecord& record);
// How late the load test itself was: from the moment when it could have sent to sending.
double LatenessMs(const RequestRecord& record);

// Ended well, but with less than was asked for: by max_tokens where the model was free to stop.
bool IsTruncated(const RequestRecord& record);
// Ended well with fewer tokens than max_tokens though it was told to ignore the end: a fault of the
// server.
bool IsShort(const RequestRecord& record);

}  // namespace baton::loadtest
