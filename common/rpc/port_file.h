// Tells whoever started a process on which ports it listens.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace baton::rpc {

// Writes {"grpc": grpc_port, "metrics": metrics_port} to `path`, atomically: a reader sees either
// no file or all of it. Call once everything listens. An empty path does nothing; kUnavailable when
// it can't be written.
absl::Status WritePortFile(const std::string& path, int grpc_port, int metrics_port);

// Removes what a run before has left there, so that nobody takes its ports for this one's while
// this one starts. As WritePortFile for what it does not do.
absl::Status RemovePortFile(const std::string& path);

}  // namespace baton::rpc
