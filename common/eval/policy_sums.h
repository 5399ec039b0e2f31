// The rows of several KV policies, summed up.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/eval/result_row.h"

namespace baton::eval {

// The policy that losses are counted against.
inline constexpr char kDensePolicy[] = "dense";

// A sum with what it is divided by.
struct Mean {
  double sum = 0.0;
  int64_t weight = 0;

  void Add(double value, int64_t by = 1) {
    sum += value;
    weight += by;
  }
  // 0 without a weight.
  double value() const { return weight == 0 ? 0.0 : sum / static_cast<double>(weight); }
};

// Cases that dense answered and a policy did not, and the reverse.
struct Loss {
  int64_t cases = 0;
  int64_t lost = 0;
  int64_t gained = 0;
  int64_t net() const { return lost - gained; }
};

// Tokens of the prompts in one stored layer, by precision.
struct LayerTiers {
  int64_t high = 0;
  int64_t low = 0;
  int64_t tokens = 0;  // those that are dropped included
  // Share of high tokens of each KV head of each case.
  std::vector<float> head_shares;
};

// Some rows of one policy.
struct RowSums {
  Mean correct;
  Mean bytes_per_token;
  Mean bytes_share;  // resident, of bf16 keys and values
  Mean wire_share;   // rows without wire bytes left out
  Mean slot_bytes_per_token;
  Mean attended_share;
  Mean hit_share;

  void Add(const ResultRow& row);
};

// All rows of one policy.
struct PolicySums {
  RowSums all;
  std::map<int32_t, RowSums> by_length;
  std::map<std::string, std::map<int32_t, Mean>> correct_by_task;  // and length
  Loss loss;                                                       // of rows that dense has too
  std::map<std::string, Loss> loss_by_task;
  std::vector<LayerTiers> layers;  // empty: the policy has one precision

  int64_t worst_task_loss() const;
};

struct PolicySummary {
  std::vector<std::string> policies;  // in order of appearance
  std::map<std::string, PolicySums> sums;
  std::set<int32_t> lengths;
  std::set<std::string> tasks;
};

PolicySummary Summarize(const std::vector<ResultRow>& rows);

}  // namespace baton::eval
