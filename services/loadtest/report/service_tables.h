// What the services counted during a run, and what could not be read of them, as tables of a
// report.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace baton::loadtest {

// Mean times of baton_stage_duration_seconds by stage and role, in the order of a request's life.
// `names` are those of `runs`, summaries of Summarize. Empty where no service was scraped.
std::string StageTable(const std::vector<nlohmann::ordered_json>& runs,
                       const std::vector<std::string>& names);

// Addresses that did not answer some scrapes; empty where all did.
std::string FailedScrapesTable(const std::vector<nlohmann::ordered_json>& runs,
                               const std::vector<std::string>& names);

}  // namespace baton::loadtest
