// A run, or two side by side, as one page.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace baton::loadtest {

// HTML that needs nothing else: styles and drawings are in it, nothing is loaded, no script runs.
// `summaries` are of Summarize, one or two; of two the first is what the second is compared with.
std::string HtmlReport(const std::vector<nlohmann::ordered_json>& summaries);

}  // namespace baton::loadtest
