#include "common/eval/policy_table.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "common/eval/result_row.h"

namespace baton::eval {
namespace {

constexpr char kDense[] = "dense";

struct Count {
  int64_t correct = 0;
  int64_t cases = 0;
};

// The rows of one policy, summed up.
struct PolicySums {
  Count all;
  int64_t prompt_tokens = 0;
  int64_t logical_bytes = 0;
  int64_t resident_bytes = 0;
  int64_t slot_bytes = 0;
  bool has_slots = false;
  double attended_sum = 0.0;
  int64_t attended_rows = 0;
  int64_t lost = 0;
  int64_t gained = 0;
  int64_t compared = 0;
  std::map<std::string, std::map<int32_t, Count>> by_task;  // and length bucket
  std::map<int32_t, Count> by_length;

  void Add(const ResultRow& row) {
    for (Count* count :
         {&all, &by_task[row.task][row.length_bucket], &by_length[row.length_bucket]}) {
      count->correct += row.correct ? 1 : 0;
      ++count->cases;
    }
    prompt_tokens += row.prompt_tokens;
    logical_bytes += row.kv_logical_bytes;
    resident_bytes += row.kv_resident_bytes;
    slot_bytes += row.kv_slot_bytes.value_or(0);
    has_slots = has_slots || row.kv_slot_bytes.has_value();
    if (row.attended_share.has_value()) {
      attended_sum += *row.attended_share;
      ++attended_rows;
    }
  }
  void Compare(const ResultRow& row, bool dense_correct) {
    ++compared;
    lost += dense_correct && !row.correct ? 1 : 0;
    gained += row.correct && !dense_correct ? 1 : 0;
  }
};

struct Summary {
  std::vector<std::string> policies;  // in order of appearance
  std::map<std::string, PolicySums> sums;
  std::set<int32_t> lengths;
  std::set<std::string> tasks;
};

Summary Summarize(const std::vector<ResultRow>& rows) {
  std::map<std::string, bool> dense;  // correct, by id
  for (const ResultRow& row : rows) {
    if (row.kv == kDense) {
      dense[row.id] = row.correct;
    }
  }
  Summary summary;
  for (const ResultRow& row : rows) {
    const auto [it, added] = summary.sums.try_emplace(row.kv);
    if (added) {
      summary.policies.push_back(row.kv);
    }
    it->second.Add(row);
    if (const auto exact = dense.find(row.id); exact != dense.end()) {
      it->second.Compare(row, exact->second);
    }
    summary.lengths.insert(row.length_bucket);
    summary.tasks.insert(row.task);
  }
  return summary;
}

std::string Ratio(double value, int64_t divisor, int decimals) {
  return divisor == 0 ? "-"
                      : absl::StrFormat("%.*f", decimals, value / static_cast<double>(divisor));
}

std::string Ratio(int64_t value, int64_t divisor, int decimals) {
  return Ratio(static_cast<double>(value), divisor, decimals);
}

std::string TotalsLine(const std::string& policy, const PolicySums& sums) {
  std::string loss = "-";
  if (sums.compared > 0 && policy != kDense) {
    loss = absl::StrCat(sums.lost - sums.gained, " (", sums.lost, " - ", sums.gained, ")");
  }
  return absl::StrCat("| `",
                      policy,
                      "` | ",
                      absl::StrCat(sums.all.correct, "/", sums.all.cases),
                      " | ",
                      Ratio(100 * sums.all.correct, sums.all.cases, 1),
                      " | ",
                      loss,
                      " | ",
                      Ratio(sums.resident_bytes, sums.prompt_tokens, 0),
                      " | ",
                      Ratio(100 * sums.resident_bytes, sums.logical_bytes, 1),
                      " | ",
                      sums.has_slots ? Ratio(sums.slot_bytes, sums.prompt_tokens, 0) : "-",
                      " | ",
                      Ratio(100.0 * sums.attended_sum, sums.attended_rows, 1),
                      " |\n");
}

// " 98 / 95 |": one percentage per length.
std::string LengthCells(const std::set<int32_t>& lengths, const std::map<int32_t, Count>& counts) {
  std::string cells;
  for (const int32_t length : lengths) {
    const auto it = counts.find(length);
    const Count count = it == counts.end() ? Count() : it->second;
    absl::StrAppend(
        &cells, cells.empty() ? " " : " / ", Ratio(100 * count.correct, count.cases, 0));
  }
  return cells + " |";
}

std::string TaskTable(Summary& summary) {
  std::string lengths;
  for (const int32_t length : summary.lengths) {
    absl::StrAppend(&lengths, lengths.empty() ? "" : " / ", length);
  }
  std::string table =
      absl::StrCat("Correct answers in % at ", lengths, " prompt tokens:\n\n| kv |");
  std::string rule = "| --- | --- |";
  for (const std::string& task : summary.tasks) {
    absl::StrAppend(&table, " ", task, " |");
    rule += " --- |";
  }
  absl::StrAppend(&table, " all |\n", rule, "\n");
  for (const std::string& policy : summary.policies) {
    PolicySums& sums = summary.sums[policy];
    absl::StrAppend(&table, "| `", policy, "` |");
    for (const std::string& task : summary.tasks) {
      table += LengthCells(summary.lengths, sums.by_task[task]);
    }
    absl::StrAppend(&table, LengthCells(summary.lengths, sums.by_length), "\n");
  }
  return table;
}

}  // namespace

std::string FormatPolicyTable(const std::vector<ResultRow>& rows) {
  Summary summary = Summarize(rows);
  std::string table =
      "| kv | correct | % | net loss | bytes/token | % of bf16 | slot bytes/token | attended % |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const std::string& policy : summary.policies) {
    table += TotalsLine(policy, summary.sums[policy]);
  }
  return rows.empty() ? table : absl::StrCat(table, "\n", TaskTable(summary));
}

}  // namespace baton::eval
