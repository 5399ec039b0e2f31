// The process's log: one line per event on stderr, level set by --log_level and by Control.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace baton::rpc {

// Sets the line format "time level thread message" and `level`; call once at start-up.
// kInvalidArgument as SetLogLevel.
absl::Status InitLogging(const std::string& level);

// "trace", "debug", "info", "warning" or "error"; anything else is kInvalidArgument and changes
// nothing. Thread-safe.
absl::Status SetLogLevel(const std::string& level);

}  // namespace baton::rpc
