#include "common/eval/read_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <ios>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/eval/result_row.h"

namespace baton::eval {
namespace {

class Collection {
 public:
  absl::Status AddFile(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      return absl::NotFoundError(absl::StrCat("cannot open ", path));
    }
    std::string line;
    for (int64_t number = 1; std::getline(file, line); ++number) {
      BATON_RETURN_IF_ERROR(WithContext(AddLine(line), absl::StrCat(path, " line ", number)));
    }
    return absl::OkStatus();
  }

  std::vector<ResultRow> TakeRows() { return std::move(rows_); }

 private:
  absl::Status AddLine(const std::string& line) {
    BATON_ASSIGN_OR_RETURN(ResultRow row, ParseResultRow(line));
    const auto [it, added] = index_.emplace(row.id + "\n" + row.kv, rows_.size());
    if (added) {
      rows_.push_back(std::move(row));
    } else if (rows_[it->second].token_ids != row.token_ids) {
      return absl::InvalidArgumentError(absl::StrCat(
          "case ", row.id, " with KV policy ", row.kv, " has another answer further up"));
    }
    return absl::OkStatus();
  }

  std::vector<ResultRow> rows_;
  std::unordered_map<std::string, size_t> index_;  // by id and policy
};

}  // namespace

absl::StatusOr<std::vector<ResultRow>> ReadRows(std::string_view paths) {
  Collection collection;
  while (!paths.empty()) {
    const size_t comma = std::min(paths.find(','), paths.size());
    BATON_RETURN_IF_ERROR(collection.AddFile(std::string(paths.substr(0, comma))));
    paths.remove_prefix(std::min(comma + 1, paths.size()));
  }
  return collection.TakeRows();
}

}  // namespace baton::eval
