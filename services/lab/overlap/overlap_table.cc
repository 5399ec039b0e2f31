#include "services/lab/overlap/overlap_table.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace baton::lab {
namespace {

std::string Line(const std::vector<std::string>& cells) {
  return absl::StrCat("| ", absl::StrJoin(cells, " | "), " |\n");
}

}  // namespace

OverlapTable::Turn& OverlapTable::At(size_t turn) {
  while (turns_.size() <= turn) {
    turns_.push_back({.ranks = std::vector<RankMeans>(ranks_.size())});
  }
  return turns_[turn];
}

void OverlapTable::AddTurn(size_t turn, int64_t tokens, int64_t new_tokens) {
  Turn& means = At(turn);
  means.tokens.Add(static_cast<double>(tokens));
  means.new_tokens.Add(static_cast<double>(new_tokens));
}

void OverlapTable::AddLayer(size_t turn, size_t rank_index, const TurnOverlap& layer) {
  RankMeans& means = At(turn).ranks[rank_index];
  means.overlap.Add(layer.overlap);
  means.first_keeps.Add(layer.first_keeps);
  means.best_keeps.Add(layer.best_keeps);
}

std::string OverlapTable::Format() const {
  std::vector<std::string> head = {"turn", "conversations", "tokens", "new"};
  for (const int64_t rank : ranks_) {
    head.push_back(absl::StrCat("overlap at ", rank));
    head.emplace_back("first keeps %");
    head.emplace_back("best keeps %");
  }
  std::string table = Line(head) + Line(std::vector<std::string>(head.size(), "---"));
  for (size_t i = 0; i < turns_.size(); ++i) {
    const Turn& turn = turns_[i];
    std::vector<std::string> cells = {absl::StrCat(i + 1),
                                      absl::StrCat(turn.tokens.weight),
                                      absl::StrFormat("%.0f", turn.tokens.value()),
                                      absl::StrFormat("%.0f", turn.new_tokens.value())};
    for (const RankMeans& means : turn.ranks) {
      cells.push_back(absl::StrFormat("%.3f", means.overlap.value()));
      cells.push_back(absl::StrFormat("%.2f", 100.0 * means.first_keeps.value()));
      cells.push_back(absl::StrFormat("%.2f", 100.0 * means.best_keeps.value()));
    }
    table += Line(cells);
  }
  return table;
}

}  // namespace baton::lab
