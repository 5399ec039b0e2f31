#include "services/lab/calibrate/choose.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/eval/result_row.h"
#include "common/kv/codec/policy_params.h"

namespace baton::lab {
namespace {

int64_t Allowed(double share, int64_t cases) {
  // A share written in decimals must not lose a case to rounding.
  return static_cast<int64_t>(std::floor(share * static_cast<double>(cases) + 1e-9));
}

double CostOf(const Candidate& candidate, Cost cost) {
  // Whoever attends to everything has nothing counted.
  return cost == Cost::kBytes ? candidate.point.bytes_per_token
                              : candidate.point.attended_share.value_or(1.0);
}

// Sums of one policy's rows.
struct Sums {
  Candidate candidate;
  std::map<std::string, Candidate::TaskLoss> tasks;
  int64_t prompt_tokens = 0;
  int64_t logical_bytes = 0;
  int64_t resident_bytes = 0;
  double attended = 0.0;
  int64_t attended_rows = 0;

  void Add(const eval::ResultRow& row, bool dense_correct) {
    const int64_t lost = dense_correct && !row.correct ? 1 : 0;
    const int64_t gained = row.correct && !dense_correct ? 1 : 0;
    ++candidate.point.cases;
    candidate.point.correct += row.correct ? 1 : 0;
    candidate.point.lost += lost;
    candidate.point.gained += gained;
    Candidate::TaskLoss& task = tasks[row.task];
    ++task.cases;
    task.net += lost - gained;
    prompt_tokens += row.prompt_tokens;
    logical_bytes += row.kv_logical_bytes;
    resident_bytes += row.kv_resident_bytes;
    if (row.attended_share.has_value()) {
      attended += *row.attended_share;
      ++attended_rows;
    }
  }
};

}  // namespace

bool Candidate::Within(const LossLimits& limits) const {
  return net_loss() <= Allowed(limits.total, point.cases) &&
         std::ranges::all_of(tasks, [&](const TaskLoss& task) {
           return task.net <= std::max<int64_t>(1, Allowed(limits.task, task.cases));
         });
}

std::optional<Candidate> Measure(const std::vector<eval::ResultRow>& rows, std::string_view kv) {
  std::map<std::string, bool> dense;  // correct, by id
  for (const eval::ResultRow& row : rows) {
    if (row.kv == kv::DensePolicy::kName) {
      dense[row.id] = row.correct;
    }
  }
  Sums sums;
  for (const eval::ResultRow& row : rows) {
    if (const auto exact = dense.find(row.id); row.kv == kv && exact != dense.end()) {
      sums.Add(row, exact->second);
    }
  }
  if (sums.prompt_tokens == 0 || sums.logical_bytes == 0) {
    return std::nullopt;
  }
  kv::CalibrationPoint& point = sums.candidate.point;
  point.kv = std::string(kv);
  const auto bytes = static_cast<double>(sums.resident_bytes);
  point.bytes_per_token = bytes / static_cast<double>(sums.prompt_tokens);
  point.bytes_share = bytes / static_cast<double>(sums.logical_bytes);
  if (sums.attended_rows > 0) {
    point.attended_share = sums.attended / static_cast<double>(sums.attended_rows);
  }
  for (const auto& [name, task] : sums.tasks) {
    sums.candidate.tasks.push_back(task);
  }
  return sums.candidate;
}

std::optional<size_t> Choose(const std::vector<Candidate>& candidates,
                             const LossLimits& limits,
                             Cost cost) {
  // Smaller is better, from the left.
  const auto rank = [&](const Candidate& candidate) {
    const double price = CostOf(candidate, cost);
    const auto loss = static_cast<double>(candidate.net_loss());
    return candidate.Within(limits)
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

std::string DescribeRule(const LossLimits& limits) {
  return absl::StrCat(
      "fewest resident bytes (for shadowkv's selector, chunk and budget: fewest attended tokens) "
      "among the policies whose net loss against dense is at most ",
      100.0 * limits.total,
      "% of all cases and ",
      100.0 * limits.task,
      "% (one case at least) of every task's; then more correct answers");
}

}  // namespace baton::lab
