// What later turns of conversations have in common with the first, as a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/eval/policy_sums.h"

namespace baton::lab {

// How the first turn's basis V_1 of one rank does in one layer of one turn t.
struct TurnOverlap {
  double overlap = 0.0;      // of V_1 and V_t
  double first_keeps = 0.0;  // of the energy of the turn's new keys, V_1
  double best_keeps = 0.0;   // the same by V_t
};

// Means over layers and conversations, by turn and rank.
class OverlapTable {
 public:
  explicit OverlapTable(std::vector<int64_t> ranks) : ranks_(std::move(ranks)) {}

  const std::vector<int64_t>& ranks() const { return ranks_; }
  // Turns count from 0. Every turn needs its tokens and one overlap at least for each rank.
  void AddTurn(size_t turn, int64_t tokens, int64_t new_tokens);
  void AddLayer(size_t turn, size_t rank_index, const TurnOverlap& layer);

  // In Markdown, a line for each turn.
  std::string Format() const;

 private:
  struct RankMeans {
    eval::Mean overlap;
    eval::Mean first_keeps;
    eval::Mean best_keeps;
  };
  struct Turn {
    eval::Mean tokens = {};
    eval::Mean new_tokens = {};
    std::vector<RankMeans> ranks;  // as in ranks_
  };
  Turn& At(size_t turn);

  const std::vector<int64_t> ranks_;
  std::vector<Turn> turns_;
};

}  // namespace baton::lab
