#include <fstream>
#include <ios>
#include <iterator>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/text/bounded_json.h"
#include "services/loadtest/commands/commands.h"
#include "services/loadtest/measure/summary.h"
#include "services/loadtest/report/html_report.h"
#include "services/loadtest/report/write_results.h"

ABSL_FLAG(std::vector<std::string>,
          results,
          {},
          "report: summary.json of a run, or of two to compare, the older first");
ABSL_FLAG(std::string, html, "report.html", "report: file to write");

namespace baton::loadtest {
namespace {

using nlohmann::ordered_json;

absl::StatusOr<ordered_json> ReadSummary(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("can't read ", path));
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  absl::StatusOr<ordered_json> summary = text::ParseBoundedOrderedJson(text, {});
  BATON_RETURN_IF_ERROR(WithContext(summary.status(), path));
  const auto format = summary->is_object() ? summary->find("format") : summary->end();
  if (!summary->is_object() || format == summary->end() || *format != kSummaryFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is no summary.json of format ", kSummaryFormat));
  }
  return summary;
}

}  // namespace

absl::Status RunReport() {
  const std::vector<std::string> paths = absl::GetFlag(FLAGS_results);
  if (paths.empty() || paths.size() > 2) {
    return absl::InvalidArgumentError("give --results one summary.json, or two to compare");
  }
  std::vector<ordered_json> summaries;
  for (const std::string& path : paths) {
    BATON_ASSIGN_OR_RETURN(ordered_json summary, ReadSummary(path));
    summaries.push_back(std::move(summary));
  }
  std::string html;
  // The library reports what is missing from a file that was changed by hand in no other way.
  try {
    html = HtmlReport(summaries);
  } catch (const ordered_json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--results lacks what a summary has: ", error.what()));
  }
  return WriteFile(absl::GetFlag(FLAGS_html), [&](std::ostream& out) { out << html; });
}

}  // namespace baton::loadtest
