#include "common/eval/policy_sums.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "common/eval/result_row.h"

namespace baton::eval {
namespace {

void AddTiers(const ResultRow& row, std::vector<LayerTiers>& layers) {
  layers.resize(std::max(layers.size(), row.tier_tokens.size()));
  for (size_t layer = 0; layer < row.tier_tokens.size(); ++layer) {
    const std::vector<int32_t>& counts = row.tier_tokens[layer];
    for (size_t head = 0; head + 1 < counts.size(); head += 2) {
      layers[layer].high += counts[head];
      layers[layer].low += counts[head + 1];
      layers[layer].tokens += row.prompt_tokens;
      layers[layer].head_shares.push_back(static_cast<float>(counts[head]) /
                                          static_cast<float>(row.prompt_tokens));
    }
  }
}

void Compare(const ResultRow& row, bool dense_correct, PolicySums& sums) {
  for (Loss* loss : {&sums.loss, &sums.loss_by_task[row.task]}) {
    ++loss->cases;
    loss->lost += dense_correct && !row.correct ? 1 : 0;
    loss->gained += row.correct && !dense_correct ? 1 : 0;
  }
}

}  // namespace

void RowSums::Add(const ResultRow& row) {
  correct.Add(row.correct ? 1.0 : 0.0);
  bytes_per_token.Add(static_cast<double>(row.kv_resident_bytes), row.prompt_tokens);
  bytes_share.Add(static_cast<double>(row.kv_resident_bytes), row.kv_logical_bytes);
  if (row.kv_wire_bytes > 0) {
    wire_share.Add(static_cast<double>(row.kv_wire_bytes), row.kv_logical_bytes);
  }
  if (row.kv_slot_bytes.has_value()) {
    slot_bytes_per_token.Add(static_cast<double>(*row.kv_slot_bytes), row.prompt_tokens);
  }
  if (row.attended_share.has_value()) {
    attended_share.Add(*row.attended_share);
  }
  if (row.hit_share.has_value()) {
    hit_share.Add(*row.hit_share);
  }
}

int64_t PolicySums::worst_task_loss() const {
  int64_t worst = std::numeric_limits<int64_t>::min();
  for (const auto& [task, task_loss] : loss_by_task) {
    worst = std::max(worst, task_loss.net());
  }
  return loss_by_task.empty() ? 0 : worst;
}

PolicySummary Summarize(const std::vector<ResultRow>& rows) {
  std::map<std::string, bool> dense;  // correct, by id
  for (const ResultRow& row : rows) {
    if (row.kv == kDensePolicy) {
      dense[row.id] = row.correct;
    }
  }
  PolicySummary summary;
  for (const ResultRow& row : rows) {
    const auto [it, added] = summary.sums.try_emplace(row.kv);
    if (added) {
      summary.policies.push_back(row.kv);
    }
    PolicySums& sums = it->second;
    sums.all.Add(row);
    sums.by_length[row.length_bucket].Add(row);
    sums.correct_by_task[row.task][row.length_bucket].Add(row.correct ? 1.0 : 0.0);
    AddTiers(row, sums.layers);
    if (const auto exact = dense.find(row.id); exact != dense.end()) {
      Compare(row, exact->second, sums);
    }
    summary.lengths.insert(row.length_bucket);
    summary.tasks.insert(row.task);
  }
  return summary;
}

}  // namespace baton::eval
