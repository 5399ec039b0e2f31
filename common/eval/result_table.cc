#include "common/eval/result_table.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"

namespace baton::eval {
namespace {

constexpr size_t kCellWidth = 10;

struct Cell {
  int64_t correct = 0;
  int64_t cases = 0;

  void Add(const ResultRow& row) {
    correct += row.correct ? 1 : 0;
    ++cases;
  }
  std::string ToString() const { return cases == 0 ? "-" : absl::StrCat(correct, "/", cases); }
};

using Line = std::map<int32_t, Cell>;  // by length bucket

std::string Right(const std::string& text) {
  return std::string(text.size() < kCellWidth ? kCellWidth - text.size() : 1, ' ') + text;
}

std::string FormatLine(const std::string& name,
                       size_t name_width,
                       const Line& line,
                       const Line& columns) {
  std::string text = name + std::string(name_width - name.size(), ' ');
  Cell sum;
  for (const auto& [length, total] : columns) {
    const auto it = line.find(length);
    const Cell cell = it == line.end() ? Cell() : it->second;
    sum.correct += cell.correct;
    sum.cases += cell.cases;
    text += Right(cell.ToString());
  }
  return text + Right(sum.ToString()) + "\n";
}

}  // namespace

std::string FormatTable(const std::vector<ResultRow>& rows) {
  std::map<std::string, Line> tasks;
  Line total;
  size_t name_width = 5;
  for (const ResultRow& row : rows) {
    tasks[row.task][row.length_bucket].Add(row);
    total[row.length_bucket].Add(row);
    name_width = std::max(name_width, row.task.size());
  }
  std::string table = "task" + std::string(name_width - 4, ' ');
  for (const auto& [length, cell] : total) {
    table += Right(absl::StrCat(length));
  }
  table += Right("all") + "\n";
  for (const auto& [task, line] : tasks) {
    table += FormatLine(task, name_width, line, total);
  }
  return table + FormatLine("total", name_width, total, total);
}

}  // namespace baton::eval
