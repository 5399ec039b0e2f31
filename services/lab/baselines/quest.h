// Baseline `quest`: pages chosen for each query by bounds of their keys.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "services/lab/baselines/baseline.h"

namespace baton::lab {

// Quest (arXiv 2406.10774, Algorithm 1): all tokens stay, in pages that know the smallest and the
// largest value of each key channel. A page's score is an upper bound of q . k in it, the largest
// of the KV head's query heads; per step and KV head the budget's pages with the highest scores are
// attended to, the page of the newest token always. Every layer selects (the paper leaves the first
// two dense).
class QuestBaseline : public Baseline {
 public:
  // `budget` tokens are budget / page_tokens pages, at least one.
  QuestBaseline(const BaselineSetup& setup, int64_t budget, int32_t page_tokens);

 protected:
  void EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) override;
  void AppendHead(HeadId at, const float* key, const float* value, int32_t position) override;
  void Select(const HeadQuery& query, std::vector<int32_t>& slots) override;
  // Bounds are in the pages' dtype: as large as one more token per page.
  int64_t HeadBytes(HeadId at) const override { return (size(at) + Pages(at)) * TokenBytes(); }

 private:
  int64_t Pages(HeadId at) const { return (size(at) + page_tokens_ - 1) / page_tokens_; }
  // Upper bound of q . k over the keys of a page.
  float Bound(HeadId at, int64_t page, const float* q) const;

  const int32_t page_tokens_;
  const int64_t budget_pages_;
  std::vector<std::vector<float>> bounds_;  // by head: [pages][smallest, largest][head_dim]
};

}  // namespace baton::lab
