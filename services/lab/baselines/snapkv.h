// Baseline `snapkv`: a prompt thinned out once, by what its end looks at.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/observing_baseline.h"
#include "services/lab/baselines/prompt_attention.h"

namespace baton::lab {

// SnapKV (arXiv 2404.14469, section 4): the last 64 prompt tokens are kept; their queries vote for
// the others by attention probability, votes are max-pooled over 7 neighbours, and per KV head the
// tokens with most votes fill the budget. Generated tokens are kept. A budget of 64 tokens or less
// keeps the last ones only.
class SnapKvBaseline : public ObservingBaseline {
 public:
  static constexpr int64_t kWindow = 64;
  static constexpr int64_t kPoolingKernel = 7;

  // `attention` observes the last kWindow queries: from FirstObserved on.
  SnapKvBaseline(const BaselineSetup& setup,
                 int64_t budget,
                 std::shared_ptr<PromptAttention> attention);
  static int64_t FirstObserved(int64_t prompt_tokens);

 protected:
  void EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) override;
  void AppendHead(HeadId at, const float* key, const float* value, int32_t /*position*/) override {
    Add(at, key, value);
  }
  int64_t HeadBytes(HeadId at) const override { return size(at) * TokenBytes(); }

 private:
  const int64_t budget_;  // of prompt tokens
};

}  // namespace baton::lab
