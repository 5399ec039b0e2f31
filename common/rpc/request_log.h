// One log line per request, machine-readable, without any text of the prompt or the answer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace baton::rpc {

// What a request's line says. Numbers only besides id, rpc and status: prompt text can't get in.
struct RequestLogEntry {
  std::string_view rpc = {};  // "Decode.Generate"
  std::string_view request_id = {};
  std::string_view traceparent = {};  // empty: left out
  absl::Status status = {};
  absl::Duration duration = {};
  std::vector<std::pair<std::string_view, int64_t>> counts = {};  // "prompt_tokens", 412
};

// The line: key=value pairs; a value that is not plain is quoted, with C escapes.
std::string FormatRequestLog(const RequestLogEntry& entry);

// Logs the line at level info, or warning when the status is an error of ours (INTERNAL, DATA_LOSS,
// UNKNOWN).
void LogRequest(const RequestLogEntry& entry);

}  // namespace baton::rpc
