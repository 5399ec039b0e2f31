#include "common/eval/policy_table.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "common/eval/policy_sums.h"
#include "common/eval/result_row.h"

namespace baton::eval {
namespace {

std::string Ratio(const Mean& mean, int decimals, double factor = 1.0) {
  return mean.weight == 0 ? "-" : absl::StrFormat("%.*f", decimals, factor * mean.value());
}

std::string Percent(const Mean& mean, int decimals = 1) { return Ratio(mean, decimals, 100.0); }

std::string Fraction(const Mean& correct) {
  return absl::StrFormat("%.0f/%d", correct.sum, correct.weight);
}

// "| a | b |\n| --- | --- |\n"
std::string Head(const std::vector<std::string>& columns) {
  return absl::StrCat("| ",
                      absl::StrJoin(columns, " | "),
                      " |\n|",
                      absl::StrJoin(std::vector<std::string>(columns.size(), " --- "), "|"),
                      "|\n");
}

std::string Line(const std::string& policy, const std::vector<std::string>& cells) {
  return absl::StrCat("| `", policy, "` | ", absl::StrJoin(cells, " | "), " |\n");
}

std::string Totals(PolicySummary& summary) {
  std::string table = Head({"kv",
                            "correct",
                            "%",
                            "net loss",
                            "worst task",
                            "bytes/token",
                            "% of bf16",
                            "wire %",
                            "slot bytes/token",
                            "attended %",
                            "hits %"});
  for (const std::string& policy : summary.policies) {
    const PolicySums& sums = summary.sums[policy];
    const bool compared = sums.loss.cases > 0 && policy != kDensePolicy;
    const Loss& loss = sums.loss;
    table +=
        Line(policy,
             {Fraction(sums.all.correct),
              Percent(sums.all.correct),
              compared ? absl::StrCat(loss.net(), " (", loss.lost, " - ", loss.gained, ")") : "-",
              compared ? absl::StrCat(sums.worst_task_loss()) : "-",
              Ratio(sums.all.bytes_per_token, 0),
              Percent(sums.all.bytes_share),
              Percent(sums.all.wire_share),
              Ratio(sums.all.slot_bytes_per_token, 0),
              Percent(sums.all.attended_share),
              Percent(sums.all.hit_share)});
  }
  return table;
}

// "98 / 95": one value per length.
template <typename Sums>
std::string ByLength(const std::set<int32_t>& lengths,
                     const std::map<int32_t, Sums>& sums,
                     const std::function<std::string(const Sums&)>& print) {
  return absl::StrJoin(lengths, " / ", [&](std::string* out, int32_t length) {
    const auto it = sums.find(length);
    out->append(print(it == sums.end() ? Sums() : it->second));
  });
}

std::string LengthTable(PolicySummary& summary) {
  std::string table = absl::StrCat("By prompt tokens, ",
                                   absl::StrJoin(summary.lengths, " / "),
                                   ":\n\n",
                                   Head({"kv", "correct", "% of bf16", "wire %", "attended %"}));
  for (const std::string& policy : summary.policies) {
    const auto cell = [&](const std::function<std::string(const RowSums&)>& print) {
      return ByLength<RowSums>(summary.lengths, summary.sums[policy].by_length, print);
    };
    table += Line(policy,
                  {cell([](const RowSums& sums) { return Fraction(sums.correct); }),
                   cell([](const RowSums& sums) { return Percent(sums.bytes_share); }),
                   cell([](const RowSums& sums) { return Percent(sums.wire_share); }),
                   cell([](const RowSums& sums) { return Percent(sums.attended_share); })});
  }
  return table;
}

std::string TaskTable(PolicySummary& summary) {
  std::vector<std::string> columns = {"kv"};
  columns.insert(columns.end(), summary.tasks.begin(), summary.tasks.end());
  columns.emplace_back("all");
  std::string table = absl::StrCat("Correct answers in % at ",
                                   absl::StrJoin(summary.lengths, " / "),
                                   " prompt tokens:\n\n",
                                   Head(columns));
  for (const std::string& policy : summary.policies) {
    PolicySums& sums = summary.sums[policy];
    std::vector<std::string> cells;
    cells.reserve(summary.tasks.size() + 1);
    for (const std::string& task : summary.tasks) {
      cells.push_back(ByLength<Mean>(summary.lengths,
                                     sums.correct_by_task[task],
                                     [](const Mean& m) { return Percent(m, 0); }));
    }
    cells.push_back(ByLength<RowSums>(
        summary.lengths, sums.by_length, [](const RowSums& s) { return Percent(s.correct, 0); }));
    table += Line(policy, cells);
  }
  return table;
}

// "35.1 / 64.9 / 0.0 (20.3-51.0)"
std::string TierCell(const LayerTiers& layer) {
  std::vector<float> shares = layer.head_shares;
  const auto percentile = [&](size_t percent) {
    const auto at =
        shares.begin() + static_cast<std::ptrdiff_t>((shares.size() - 1) * percent / 100);
    std::nth_element(shares.begin(), at, shares.end());
    return 100.0 * *at;
  };
  const double all = static_cast<double>(layer.tokens) / 100.0;
  return absl::StrFormat("%.1f / %.1f / %.1f (%.1f-%.1f)",
                         static_cast<double>(layer.high) / all,
                         static_cast<double>(layer.low) / all,
                         static_cast<double>(layer.tokens - layer.high - layer.low) / all,
                         percentile(5),
                         percentile(95));
}

std::string TierTable(PolicySummary& summary) {
  std::vector<std::string> columns = {"kv"};
  std::string lines;
  for (const std::string& policy : summary.policies) {
    std::vector<std::string> cells;
    for (const LayerTiers& layer : summary.sums[policy].layers) {
      cells.push_back(TierCell(layer));
    }
    while (columns.size() <= cells.size()) {
      columns.push_back(absl::StrCat("layer ", columns.size() - 1));
    }
    if (!cells.empty()) {
      lines += Line(policy, cells);
    }
  }
  return lines.empty() ? ""
                       : absl::StrCat(
                             "\nHigh / low / dropped prompt tokens in % (of a KV head's "
                             "high tokens, 5th-95th percentile):\n\n",
                             Head(columns),
                             lines);
}

}  // namespace

std::string FormatPolicyTable(const std::vector<ResultRow>& rows) {
  PolicySummary summary = Summarize(rows);
  std::string table = Totals(summary);
  if (!rows.empty()) {
    absl::StrAppend(
        &table, "\n", LengthTable(summary), "\n", TaskTable(summary), TierTable(summary));
  }
  return table;
}

}  // namespace baton::eval
