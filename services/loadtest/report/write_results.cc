#include "services/loadtest/report/write_results.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <ios>
#include <ostream>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "services/loadtest/measure/run_result.h"
#include "services/loadtest/report/html_report.h"
#include "services/loadtest/report/search_report.h"
#include "services/loadtest/report/write_records.h"

namespace baton::loadtest {

absl::Status MakeFolder(const std::string& folder) {
  std::error_code error;
  if (!folder.empty()) {
    std::filesystem::create_directories(folder, error);
  }
  return error ? absl::FailedPreconditionError(
                     absl::StrCat("can't make the folder ", folder, ": ", error.message()))
               : absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, const std::function<void(std::ostream&)>& write) {
  std::ofstream file(path, std::ios::binary);
  write(file);
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("can't write ", path));
}

absl::Status WriteResults(const RunResult& run,
                          const nlohmann::ordered_json& summary,
                          bool token_times,
                          const std::string& folder) {
  using nlohmann::ordered_json;
  BATON_RETURN_IF_ERROR(WriteFile(folder + "/summary.json", [&](std::ostream& out) {
    out << summary.dump(1, ' ', false, ordered_json::error_handler_t::replace) << '\n';
  }));
  BATON_RETURN_IF_ERROR(WriteFile(folder + "/requests.jsonl", [&](std::ostream& out) {
    WriteJsonLines(run.records, token_times, out);
  }));
  BATON_RETURN_IF_ERROR(
      WriteFile(folder + "/requests.csv", [&](std::ostream& out) { WriteCsv(run.records, out); }));
  return WriteFile(folder + "/report.html",
                   [&](std::ostream& out) { out << HtmlReport({summary}); });
}

absl::Status WriteSearch(const nlohmann::ordered_json& found, const std::string& folder) {
  using nlohmann::ordered_json;
  BATON_RETURN_IF_ERROR(WriteFile(folder + "/search.json", [&](std::ostream& out) {
    out << found.dump(1, ' ', false, ordered_json::error_handler_t::replace) << '\n';
  }));
  return WriteFile(folder + "/search.html", [&](std::ostream& out) { out << SearchReport(found); });
}

}  // namespace baton::loadtest
