// The rule by which a calibration chooses among measured policies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/eval/result_row.h"
#include "common/kv/calibration/calibration_file.h"

namespace baton::lab {

// What a policy may cost. The net loss is the number of cases that dense KV answers and the policy
// does not, minus the reverse, in the same run.
struct LossLimits {
  double total = 0.0;  // net loss in all, as a share of the cases
  double task = 0.0;  // net loss of one task, as a share of its cases; at least one case is allowed
};

// What is made as small as it goes: resident bytes or bytes sent, as a share of bf16 KV, or tokens
// attended to, as a share of the prompt.
enum class Cost : uint8_t { kBytes, kWire, kAttended };

// What a stage is for.
struct Goal {
  LossLimits limits;
  Cost cost = Cost::kBytes;
  // The most that the cost may be. Set: the smallest loss that this gives is wanted, in place of
  // the smallest cost within the limits.
  std::optional<double> cap = std::nullopt;
};

// A policy on the calibration's cases.
struct Candidate {
  kv::CalibrationPoint point;
  // Net loss of the worst task beyond what is allowed decides with the total.
  struct TaskLoss {
    int64_t cases = 0;
    int64_t net = 0;
  };
  std::vector<TaskLoss> tasks = {};

  int64_t net_loss() const { return point.lost - point.gained; }
  bool Within(const LossLimits& limits) const;
};

// Sums up the rows of every policy, by its name in rows, against those of `dense`, case by case.
// Policies without a case that dense has too are left out.
std::map<std::string, Candidate> Measure(std::vector<eval::ResultRow> rows);

// The index of the candidate to take. Without a cap: of those within the limits the cheapest, then
// the one with more correct answers, then the first; when none is within them, the one with the
// smallest net loss, then the cheapest, then the first. With a cap: of those that cost no more,
// those within the limits first, the one with the smallest net loss, then of bytes the most,
// because on few cases equal losses are no reason to save more than was asked for, and of attended
// tokens, which are time, the fewest, then the first; when none costs so little, the cheapest.
// Nothing for no candidates.
std::optional<size_t> Choose(const std::vector<Candidate>& candidates, const Goal& goal);

// Goal::cap of the families' stages.
struct Caps {
  std::optional<double> diffkv_bytes;
  std::optional<double> shadowkv_attended;
  std::optional<double> shadowkv_bytes;
  std::optional<double> hidden8_diffkv_wire;
};

// The rule in words, for the file.
std::string DescribeRule(const LossLimits& limits, const Caps& caps);

}  // namespace baton::lab
