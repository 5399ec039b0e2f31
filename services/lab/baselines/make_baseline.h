// Baselines by policy.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "common/kv/codec/kv_policy.h"
#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/prompt_attention.h"

namespace baton::lab {

// Makes the baselines of one prompt; those that look at the same queries share what they see. All
// of them have to be made before the prompt is computed.
class BaselineFactory {
 public:
  explicit BaselineFactory(const BaselineSetup& setup) : setup_(setup) {}

  std::unique_ptr<Baseline> Make(const kv::KvBaselinePolicy& policy);

 private:
  std::shared_ptr<PromptAttention> Attention(int64_t first_observed);

  const BaselineSetup setup_;
  std::map<int64_t, std::shared_ptr<PromptAttention>> attention_;  // by first_observed
};

}  // namespace baton::lab
