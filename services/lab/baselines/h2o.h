// Baseline `h2o`: heavy hitters and recent tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/observing_baseline.h"
#include "services/lab/baselines/prompt_attention.h"

namespace baton::lab {

// H2O (arXiv 2306.14048, Algorithm 1): half of the budget for the newest tokens, half for those
// with the largest attention accumulated over all queries so far. The prompt is thinned out at its
// end; in decode each new token beyond the budget evicts the lightest that is not recent, before
// its own attention.
class H2oBaseline : public ObservingBaseline {
 public:
  // `attention` observes every prompt query.
  H2oBaseline(const BaselineSetup& setup,
              int64_t budget,
              std::shared_ptr<PromptAttention> attention);

 protected:
  void EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) override;
  void AppendHead(HeadId at, const float* key, const float* value, int32_t position) override;
  void Attended(const HeadQuery& query, std::span<const int32_t> slots) override;
  // A token's score and position are kept with it, 4 bytes each.
  int64_t HeadBytes(HeadId at) const override { return size(at) * (TokenBytes() + 8); }

 private:
  // What is known of the token in a slot.
  struct Held {
    int32_t position = 0;
    float score = 0.0f;  // accumulated attention
  };

  int32_t Lightest(HeadId at, int32_t position) const;

  const int64_t budget_;
  const int64_t recent_;
  std::vector<std::vector<Held>> held_;  // by head and slot
};

}  // namespace baton::lab
