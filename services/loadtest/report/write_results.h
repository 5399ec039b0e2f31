// The files of a run.
#pragma once

#include <functional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

#include "services/loadtest/measure/run_result.h"

namespace baton::loadtest {

// Makes `folder` and those above it; an empty name does nothing. kFailedPrecondition when it can't.
absl::Status MakeFolder(const std::string& folder);

// Writes what `write` puts out to a file; kUnavailable when the disk is full or the path is wrong.
absl::Status WriteFile(const std::string& path, const std::function<void(std::ostream&)>& write);

// summary.json, requests.jsonl, requests.csv and report.html in `folder`, which exists.
absl::Status WriteResults(const RunResult& run,
                          const nlohmann::ordered_json& summary,
                          bool token_times,
                          const std::string& folder);

// search.json and search.html in `folder`, which exists; `found` is as SearchReport takes it.
absl::Status WriteSearch(const nlohmann::ordered_json& found, const std::string& folder);

}  // namespace baton::loadtest
