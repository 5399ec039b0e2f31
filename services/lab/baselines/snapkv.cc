#include "services/lab/baselines/snapkv.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/observing_baseline.h"
#include "services/lab/baselines/prompt_attention.h"
#include "services/lab/baselines/vector_math.h"

namespace baton::lab {
namespace {

// Maximum over the kernel around each element; what lies outside does not count.
std::vector<float> MaxPool(std::span<const float> x, int64_t kernel) {
  const auto count = static_cast<int64_t>(x.size());
  std::vector<float> pooled(x.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = std::max<int64_t>(0, i - kernel / 2);
    const int64_t end = std::min(count, i + kernel / 2 + 1);
    pooled[static_cast<size_t>(i)] = *std::max_element(x.begin() + begin, x.begin() + end);
  }
  return pooled;
}

}  // namespace

SnapKvBaseline::SnapKvBaseline(const BaselineSetup& setup,
                               int64_t budget,
                               std::shared_ptr<PromptAttention> attention)
    : ObservingBaseline(
          setup,
          std::min(budget, setup.prompt_tokens) + setup.max_tokens - setup.prompt_tokens,
          std::move(attention)),
      budget_(std::min(budget, setup.prompt_tokens)) {}

int64_t SnapKvBaseline::FirstObserved(int64_t prompt_tokens) {
  return std::max<int64_t>(0, prompt_tokens - kWindow);
}

void SnapKvBaseline::EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) {
  const int64_t tokens = setup().prompt_tokens;
  const int64_t window = std::min({kWindow, budget_, tokens});
  const std::span<const float> votes =
      attention().Sums(at).first(static_cast<size_t>(tokens - window));
  std::vector<int32_t> kept = TopIndices(MaxPool(votes, kPoolingKernel), budget_ - window);
  for (int64_t token = tokens - window; token < tokens; ++token) {
    kept.push_back(static_cast<int32_t>(token));
  }
  for (const int32_t token : kept) {
    const auto element = static_cast<size_t>(token) * static_cast<size_t>(head_dim());
    Add(at, &keys[element], &values[element]);
  }
}

}  // namespace baton::lab
