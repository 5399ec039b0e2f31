#include "services/lab/calibrate/choose.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/eval/policy_sums.h"
#include "common/eval/result_row.h"

namespace baton::lab {
namespace {

int64_t Allowed(double share, int64_t cases) {
  // A share written in decimals must not lose a case to rounding.
  return static_cast<int64_t>(std::floor(share * static_cast<double>(cases) + 1e-9));
}

double CostOf(const Candidate& candidate, Cost cost) {
  switch (cost) {
    case Cost::kBytes:
      return candidate.point.bytes_share;
    case Cost::kWire:
      return candidate.point.wire_share.value_or(1.0);
    case Cost::kAttended:
      // Whoever attends to everything has nothing counted.
      return candidate.point.attended_share.value_or(1.0);
  }
  return 0.0;
}

Candidate MakeCandidate(const std::string& kv, const eval::PolicySums& sums) {
  Candidate candidate = {.point = {.kv = kv,
                                   .cases = sums.all.correct.weight,
                                   .correct = std::llround(sums.all.correct.sum),
                                   .lost = sums.loss.lost,
                                   .gained = sums.loss.gained,
                                   .bytes_per_token = sums.all.bytes_per_token.value(),
                                   .bytes_share = sums.all.bytes_share.value()}};
  if (sums.all.wire_share.weight > 0) {
    candidate.point.wire_share = sums.all.wire_share.value();
  }
  if (sums.all.attended_share.weight > 0) {
    candidate.point.attended_share = sums.all.attended_share.value();
  }
  for (const auto& [task, loss] : sums.loss_by_task) {
    candidate.tasks.push_back({.cases = loss.cases, .net = loss.net()});
  }
  return candidate;
}

}  // namespace

bool Candidate::Within(const LossLimits& limits) const {
  return net_loss() <= Allowed(limits.total, point.cases) &&
         std::ranges::all_of(tasks, [&](const TaskLoss& task) {
           return task.net <= std::max<int64_t>(1, Allowed(limits.task, task.cases));
         });
}

std::map<std::string, Candidate> Measure(std::vector<eval::ResultRow> rows) {
  std::set<std::string> compared;  // ids with a row of dense
  for (const eval::ResultRow& row : rows) {
    if (row.kv == eval::kDensePolicy) {
      compared.insert(row.id);
    }
  }
  std::erase_if(rows, [&](const eval::ResultRow& row) { return !compared.contains(row.id); });
  std::map<std::string, Candidate> candidates;
  for (const auto& [kv, sums] : eval::Summarize(rows).sums) {
    if (sums.all.bytes_share.weight > 0) {
      candidates[kv] = MakeCandidate(kv, sums);
    }
  }
  return candidates;
}

std::optional<size_t> Choose(const std::vector<Candidate>& candidates, const Goal& goal) {
  // Smaller is better, from the left.
  const auto rank = [&](const Candidate& candidate) {
    const double price = CostOf(candidate, goal.cost);
    const auto loss = static_cast<double>(candidate.net_loss());
    if (goal.cap.has_value()) {
      return price > *goal.cap ? std::tuple(2, price, loss)
                               : std::tuple(candidate.Within(goal.limits) ? 0 : 1,
                                            loss,
                                            goal.cost == Cost::kAttended ? price : -price);
    }
    return candidate.Within(goal.limits)
               ? std::tuple(0, price, -static_cast<double>(candidate.point.correct))
               : std::tuple(1, loss, price);
  };
  std::optional<size_t> best;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!best.has_value() || rank(candidates[i]) < rank(candidates[*best])) {
      best = i;
    }
  }
  return best;
}

std::string DescribeRule(const LossLimits& limits, const Caps& caps) {
  std::string rule = absl::StrCat(
      "fewest resident bytes (for shadowkv's selector, chunk and budget: fewest attended tokens) "
      "among the policies whose net loss against dense is at most ",
      100.0 * limits.total,
      "% of all cases and ",
      100.0 * limits.task,
      "% (one case at least) of every task's; then more correct answers");
  const auto add = [&](std::string_view stages,
                       const std::optional<double>& cap,
                       std::string_view unit,
                       std::string_view tie) {
    if (cap.has_value()) {
      absl::StrAppend(&rule,
                      "; for ",
                      std::string(stages),
                      ": smallest net loss in at most ",
                      100.0 * *cap,
                      "% of ",
                      std::string(unit),
                      ", within these limits if any is, then ",
                      std::string(tie));
    }
  };
  constexpr std::string_view kBytes = "the bytes of bf16 KV";
  add("diffkv", caps.diffkv_bytes, kBytes, "most bytes");
  add("shadowkv's selector, chunk and budget",
      caps.shadowkv_attended,
      "the prompt attended to",
      "fewest attended tokens");
  add("shadowkv's rank, factors and values", caps.shadowkv_bytes, kBytes, "most bytes");
  add("hidden8+diffkv, by bytes sent", caps.hidden8_diffkv_wire, kBytes, "most bytes");
  return rule;
}

}  // namespace baton::lab
