// A search for the maximum goodput as one page.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace baton::loadtest {

// HTML as Page makes it: the rates found, what every probe saw over its rate, and the settings.
// `found` is of SearchGoodput, with "title" and "settings" (flags and their values).
std::string SearchReport(const nlohmann::ordered_json& found);

}  // namespace baton::loadtest
