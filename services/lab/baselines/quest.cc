#include "services/lab/baselines/quest.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/vector_math.h"

namespace baton::lab {

QuestBaseline::QuestBaseline(const BaselineSetup& setup, int64_t budget, int32_t page_tokens)
    : Baseline(setup, setup.max_tokens),
      page_tokens_(page_tokens),
      budget_pages_(std::max<int64_t>(1, budget / page_tokens)),
      bounds_(heads()) {}

void QuestBaseline::EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) {
  const auto dim = static_cast<size_t>(head_dim());
  for (size_t element = 0; element < keys.size(); element += dim) {
    AppendHead(at, &keys[element], &values[element], 0);
  }
}

void QuestBaseline::AppendHead(HeadId at,
                               const float* key,
                               const float* value,
                               int32_t /*position*/) {
  std::vector<float>& bounds = bounds_[Index(at)];
  if (size(at) % page_tokens_ == 0) {
    bounds.insert(bounds.end(), key, key + head_dim());
    bounds.insert(bounds.end(), key, key + head_dim());
  }
  float* largest = bounds.data() + bounds.size() - head_dim();
  float* smallest = largest - head_dim();
  for (int32_t i = 0; i < head_dim(); ++i) {
    smallest[i] = std::min(smallest[i], key[i]);
    largest[i] = std::max(largest[i], key[i]);
  }
  Add(at, key, value);
}

float QuestBaseline::Bound(HeadId at, int64_t page, const float* q) const {
  const float* smallest = bounds_[Index(at)].data() + page * 2 * head_dim();
  const float* largest = smallest + head_dim();
  float sum = 0.0f;
  for (int32_t i = 0; i < head_dim(); ++i) {
    sum += std::max(q[i] * smallest[i], q[i] * largest[i]);
  }
  return sum;
}

void QuestBaseline::Select(const HeadQuery& query, std::vector<int32_t>& slots) {
  const int64_t newest = Pages(query.at) - 1;
  std::vector<float> scores(static_cast<size_t>(newest));
  for (int64_t page = 0; page < newest; ++page) {
    float& score = scores[static_cast<size_t>(page)];
    score = Bound(query.at, page, query.q);
    for (int32_t member = 1; member < query.group; ++member) {
      score = std::max(score, Bound(query.at, page, query.q + int64_t{member} * head_dim()));
    }
  }
  std::vector<int32_t> pages = TopIndices(scores, budget_pages_ - 1);
  pages.push_back(static_cast<int32_t>(newest));
  for (const int32_t page : pages) {
    const int32_t end = std::min((page + 1) * page_tokens_, size(query.at));
    for (int32_t slot = page * page_tokens_; slot < end; ++slot) {
      slots.push_back(slot);
    }
  }
}

}  // namespace baton::lab
