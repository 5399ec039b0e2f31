// Baseline `static`: two precisions in the same proportion everywhere.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/kv/codec/policy_params.h"
#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/observing_baseline.h"
#include "services/lab/baselines/prompt_attention.h"

namespace baton::lab {

// DiffKV (arXiv 2412.03131) with static budgets: every KV head of every layer has the same share of
// its prompt tokens in the high tier and the others in the low one, where DiffKV lets thresholds
// decide how many. High are the last 64 tokens, which count into the share and are high even where
// it has no room for them, and those that get most attention from the queries of these 64.
// Generated tokens are high. Nothing is dropped and nothing changes its tier. Codes are those of
// `int4` with other widths: a scale and a zero per token and KV head for the key and for the value.
class StaticBaseline : public ObservingBaseline {
 public:
  static constexpr int64_t kWindow = 64;

  // `attention` observes the last kWindow queries: from FirstObserved on.
  StaticBaseline(const BaselineSetup& setup,
                 const kv::StaticPolicy& policy,
                 std::shared_ptr<PromptAttention> attention);
  static int64_t FirstObserved(int64_t prompt_tokens);

 protected:
  void EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) override;
  void AppendHead(HeadId at, const float* key, const float* value, int32_t position) override;
  // Codes, scales and zeros. Which tokens are high is in the order they lie in.
  int64_t HeadBytes(HeadId at) const override;

 private:
  // Replaces one key and value by what their codes decode to.
  void Round(kv::KvTier tier, float* key, float* value) const;
  int64_t PairBytes(kv::KvTier tier) const;

  const kv::StaticPolicy policy_;
  const int64_t window_;
  const int64_t high_tokens_;  // of the prompt
};

}  // namespace baton::lab
