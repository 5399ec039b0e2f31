// Baseline `loki`: tokens chosen for each query by the first principal components of their keys.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "services/lab/baselines/baseline.h"

namespace baton::lab {

// Loki (arXiv 2406.02542, Algorithm 1): all tokens stay; per step and KV head they are ranked by
// q . k in the first head_dim / 4 principal components of the keys after RoPE, the largest of the
// KV head's query heads, and the budget's best are attended to exactly. The paper calibrates the
// components offline per layer and head; here they are those of the prompt itself, which is kinder
// to the method and costs a basis per prompt, head and layer. Keys are held in that basis as in the
// paper, so projections cost no bytes.
class LokiBaseline : public Baseline {
 public:
  LokiBaseline(const BaselineSetup& setup, int64_t budget)
      : Baseline(setup, setup.max_tokens), budget_(budget), states_(heads()) {}

 protected:
  void EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) override;
  void AppendHead(HeadId at, const float* key, const float* value, int32_t position) override;
  void Select(const HeadQuery& query, std::vector<int32_t>& slots) override;
  // The basis is head_dim rows in the pages' dtype.
  int64_t HeadBytes(HeadId at) const override {
    return size(at) * TokenBytes() + head_dim() * TokenBytes() / 2;
  }

 private:
  struct State {
    std::vector<float> axes;       // [components][head_dim]
    std::vector<float> projected;  // [tokens][components], keys
  };

  int64_t components() const { return head_dim() >= 4 ? head_dim() / 4 : 1; }
  // Appends the components of `x`.
  void Project(const State& state, const float* x, std::vector<float>& projected) const;

  const int64_t budget_;
  std::vector<State> states_;  // by head
};

}  // namespace baton::lab
