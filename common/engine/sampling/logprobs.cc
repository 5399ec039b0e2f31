#include "common/engine/sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "common/base/check.h"
#include "common/engine/request.h"
#include "common/engine/sampling/top_logits.h"
#include "kernels/ops/top_logits_host.h"

namespace baton::engine {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

float OrNever(float logit) { return std::isnan(logit) ? kNever : logit; }

float Logprob(float logit, double log_sum) {
  const float value = static_cast<float>(static_cast<double>(OrNever(logit)) - log_sum);
  return std::isnan(value) ? kNever : value;
}

}  // namespace

void FillLogprobs(std::span<const float> raw_logits, int32_t top_count, TokenOutput& output) {
  const double log_sum = kernels::LogSumExp(raw_logits);
  output.logprob = Logprob(raw_logits[static_cast<size_t>(output.token_id)], log_sum);
  const size_t count = std::min(raw_logits.size(), static_cast<size_t>(top_count));
  output.top_logprobs.clear();
  if (count == 0) {
    return;
  }
  std::vector<int32_t> ids(raw_logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto more_likely = [&](int32_t a, int32_t b) {
    const float x = OrNever(raw_logits[static_cast<size_t>(a)]);
    const float y = OrNever(raw_logits[static_cast<size_t>(b)]);
    return x != y ? x > y : a < b;
  };
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(ids.begin(), end, ids.end(), more_likely);
  for (auto id = ids.begin(); id != end; ++id) {
    output.top_logprobs.emplace_back(*id, Logprob(raw_logits[static_cast<size_t>(*id)], log_sum));
  }
}

void FillLogprobs(const TopLogits& top, int32_t top_count, TokenOutput& output) {
  const auto chosen = std::find(top.ids.begin(), top.ids.end(), output.token_id);
  BATON_CHECK(chosen != top.ids.end());
  output.logprob = Logprob(top.values[static_cast<size_t>(chosen - top.ids.begin())], top.log_sum);
  output.top_logprobs.clear();
  const size_t count = std::min(top.ids.size(), static_cast<size_t>(top_count));
  for (size_t i = 0; i < count; ++i) {
    output.top_logprobs.emplace_back(top.ids[i], Logprob(top.values[i], top.log_sum));
  }
}

}  // namespace baton::engine
