#include "services/lab/baselines/h2o.h"

#include <algorithm>
#include <memory>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/observing_baseline.h"
#include "services/lab/baselines/prompt_attention.h"
#include "services/lab/baselines/vector_math.h"

namespace baton::lab {

H2oBaseline::H2oBaseline(const BaselineSetup& setup,
                         int64_t budget,
                         std::shared_ptr<PromptAttention> attention)
    : ObservingBaseline(setup, std::min(budget, setup.max_tokens), std::move(attention)),
      budget_(std::min(budget, setup.max_tokens)),
      recent_(std::max<int64_t>(1, budget_ / 2)),
      held_(heads()) {}

void H2oBaseline::EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) {
  const int64_t tokens = setup().prompt_tokens;
  const int64_t recent = std::min(recent_, tokens);
  const std::span<const float> scores = attention().Sums(at);
  std::vector<int32_t> kept =
      TopIndices(scores.first(static_cast<size_t>(tokens - recent)), budget_ - recent);
  for (int64_t token = tokens - recent; token < tokens; ++token) {
    kept.push_back(static_cast<int32_t>(token));
  }
  for (const int32_t token : kept) {
    const auto element = static_cast<size_t>(token) * static_cast<size_t>(head_dim());
    Add(at, &keys[element], &values[element]);
    held_[Index(at)].push_back({.position = token, .score = scores[static_cast<size_t>(token)]});
  }
}

int32_t H2oBaseline::Lightest(HeadId at, int32_t position) const {
  const std::vector<Held>& held = held_[Index(at)];
  // Recent tokens are never lighter; there is one that is not, unless the budget is one token.
  const auto weight = [&](const Held& token) {
    return std::pair(token.position > position - recent_ ? 1 : 0, token.score);
  };
  const auto lightest =
      std::min_element(held.begin(), held.end(), [&](const Held& a, const Held& b) {
        return std::pair(weight(a), a.position) < std::pair(weight(b), b.position);
      });
  return static_cast<int32_t>(lightest - held.begin());
}

void H2oBaseline::AppendHead(HeadId at, const float* key, const float* value, int32_t position) {
  std::vector<Held>& held = held_[Index(at)];
  if (size(at) < budget_) {
    Add(at, key, value);
    held.push_back({.position = position});
    return;
  }
  const int32_t slot = Lightest(at, position);
  store(at.kv_layer).Put(at.kv_head, slot, key, value);
  held[static_cast<size_t>(slot)] = {.position = position};
}

void H2oBaseline::Attended(const HeadQuery& query, std::span<const int32_t> slots) {
  const float scale = query.scale * std::numbers::log2e_v<float>;
  std::vector<float> largest(slots.size(), 0.0f);
  std::vector<float> line(slots.size());
  for (int32_t member = 0; member < query.group; ++member) {
    const float* q = query.q + int64_t{member} * head_dim();
    for (size_t i = 0; i < slots.size(); ++i) {
      const float* key = store(query.at.kv_layer).key(query.at.kv_head, slots[i]);
      line[i] = Dot(q, key, head_dim()) * scale;
    }
    const float sum = Exp2FromMax(line);
    for (size_t i = 0; i < slots.size(); ++i) {
      largest[i] = std::max(largest[i], line[i] / sum);
    }
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    held_[Index(query.at)][static_cast<size_t>(slots[i])].score += largest[i];
  }
}

}  // namespace baton::lab
