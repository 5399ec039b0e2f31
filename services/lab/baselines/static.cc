#include "services/lab/baselines/static.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/kv/codec/policy_params.h"
#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/observing_baseline.h"
#include "services/lab/baselines/prompt_attention.h"
#include "services/lab/baselines/round_to_codes.h"
#include "services/lab/baselines/vector_math.h"

namespace baton::lab {

StaticBaseline::StaticBaseline(const BaselineSetup& setup,
                               const kv::StaticPolicy& policy,
                               std::shared_ptr<PromptAttention> attention)
    : ObservingBaseline(setup, setup.max_tokens, std::move(attention)),
      policy_(policy),
      window_(std::min(kWindow, setup.prompt_tokens)),
      high_tokens_(std::max<int64_t>(
          window_, std::llround(policy.share * static_cast<double>(setup.prompt_tokens)))) {}

int64_t StaticBaseline::FirstObserved(int64_t prompt_tokens) {
  return std::max<int64_t>(0, prompt_tokens - kWindow);
}

void StaticBaseline::Round(kv::KvTier tier, float* key, float* value) const {
  RoundToCodes(key, head_dim(), 1, kv::KeyBits(tier));
  RoundToCodes(value, head_dim(), 1, kv::ValueBits(tier));
}

void StaticBaseline::EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) {
  const auto tokens = static_cast<size_t>(setup().prompt_tokens);
  const auto dim = static_cast<size_t>(head_dim());
  const std::span<const float> sums =
      attention().Sums(at).first(tokens - static_cast<size_t>(window_));
  std::vector<kv::KvTier> tiers(tokens, policy_.high);
  std::fill_n(tiers.begin(), sums.size(), policy_.low);
  for (const int32_t token : TopIndices(sums, high_tokens_ - window_)) {
    tiers[static_cast<size_t>(token)] = policy_.high;
  }
  for (size_t token = 0; token < tokens; ++token) {
    Round(tiers[token], &keys[token * dim], &values[token * dim]);
  }
  AddAll(at, keys, values);
}

void StaticBaseline::AppendHead(HeadId at,
                                const float* key,
                                const float* value,
                                int32_t /*position*/) {
  std::vector<float> k(key, key + head_dim());
  std::vector<float> v(value, value + head_dim());
  Round(policy_.high, k.data(), v.data());
  Add(at, k.data(), v.data());
}

int64_t StaticBaseline::PairBytes(kv::KvTier tier) const {
  return int64_t{head_dim()} * (kv::KeyBits(tier) + kv::ValueBits(tier)) / 8 +
         2 * kGroupMetadataBytes;
}

int64_t StaticBaseline::HeadBytes(HeadId at) const {
  const int64_t low = std::min<int64_t>(size(at), setup().prompt_tokens - high_tokens_);
  return low * PairBytes(policy_.low) + (size(at) - low) * PairBytes(policy_.high);
}

}  // namespace baton::lab
