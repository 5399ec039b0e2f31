#include "services/lab/baselines/loki.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/principal_axes.h"
#include "services/lab/baselines/vector_math.h"

namespace baton::lab {

void LokiBaseline::EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) {
  states_[Index(at)].axes = PrincipalAxes(keys, head_dim(), components());
  const auto dim = static_cast<size_t>(head_dim());
  for (size_t element = 0; element < keys.size(); element += dim) {
    AppendHead(at, &keys[element], &values[element], 0);
  }
}

void LokiBaseline::AppendHead(HeadId at,
                              const float* key,
                              const float* value,
                              int32_t /*position*/) {
  State& state = states_[Index(at)];
  Project(state, key, state.projected);
  Add(at, key, value);
}

void LokiBaseline::Project(const State& state,
                           const float* x,
                           std::vector<float>& projected) const {
  for (int64_t i = 0; i < components(); ++i) {
    projected.push_back(Dot(&state.axes[static_cast<size_t>(i * head_dim())], x, head_dim()));
  }
}

void LokiBaseline::Select(const HeadQuery& query, std::vector<int32_t>& slots) {
  const State& state = states_[Index(query.at)];
  std::vector<float> scores(static_cast<size_t>(size(query.at)));
  for (int32_t member = 0; member < query.group; ++member) {
    std::vector<float> q;
    Project(state, query.q + int64_t{member} * head_dim(), q);
    for (size_t token = 0; token < scores.size(); ++token) {
      const float* key = &state.projected[token * static_cast<size_t>(components())];
      const float score = Dot(q.data(), key, components());
      scores[token] = member == 0 ? score : std::max(scores[token], score);
    }
  }
  slots = TopIndices(scores, budget_);
}

}  // namespace baton::lab
