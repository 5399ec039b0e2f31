// A summary for the terminal.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace baton::loadtest {

// Requests, throughput, latencies, goodput, errors, KV bytes, and whether the load test itself was
// the bottleneck. `summary` is one of Summarize.
std::string ConsoleTable(const nlohmann::ordered_json& summary);

}  // namespace baton::loadtest
