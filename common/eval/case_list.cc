#include "common/eval/case_list.h"

#include <fstream>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"

namespace baton::eval {
namespace {

constexpr size_t kMaxIds = 1'000'000;

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadCaseList(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("cannot open the case list ", path));
  }
  std::vector<std::string> ids;
  std::unordered_set<std::string> seen;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    const size_t end = line.find_last_not_of(" \t\r");
    if (end == std::string::npos || line.front() == '#') {
      continue;
    }
    line.resize(end + 1);
    if (!seen.insert(line).second || ids.size() == kMaxIds) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " line ", number, ": id ", line, " occurs twice or is one too many"));
    }
    ids.push_back(line);
  }
  return ids;
}

absl::StatusOr<std::vector<EvalCase>> SelectCases(const std::vector<EvalCase>& cases,
                                                  const std::vector<std::string>& ids) {
  std::unordered_map<std::string_view, const EvalCase*> by_id;
  for (const EvalCase& eval_case : cases) {
    by_id.emplace(eval_case.id, &eval_case);
  }
  std::vector<EvalCase> selected;
  selected.reserve(ids.size());
  for (const std::string& id : ids) {
    const auto it = by_id.find(id);
    if (it == by_id.end()) {
      return absl::NotFoundError(absl::StrCat("no case has the id ", id));
    }
    selected.push_back(*it->second);
  }
  return selected;
}

}  // namespace baton::eval
