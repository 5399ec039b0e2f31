#include "tests/gpu/support/device_shadowkv_prompt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "kernels/cuda/runtime/device_queue.h"

namespace baton::kernels::cuda {
namespace {

size_t PagesOf(const ShadowKvProblem& problem) {
  const int64_t tokens = problem.shape().prompt_tokens + problem.shape().generated_tokens;
  return static_cast<size_t>(problem.EncodeParams(nullptr).pages.layout.pages_for(tokens));
}

std::span<const float> BiasOf(const ShadowKvProblem& problem) {
  const auto width = static_cast<size_t>(problem.layout().config.width());
  return {problem.key_bias(), problem.key_bias() == nullptr ? 0 : width};
}

}  // namespace

DeviceShadowKvPrompt::DeviceShadowKvPrompt(const ShadowKvProblem& problem)
    : layout_(problem.layout()),
      pages_layout_(problem.EncodeParams(nullptr).pages.layout),
      pages_(std::span<const std::byte>(problem.EncodeParams(nullptr).pages.base,
                                        PagesOf(problem) * pages_layout_.stride_bytes())),
      page_table_(std::span(problem.EncodeParams(nullptr).page_table, PagesOf(problem))),
      rope_(problem.rope(), problem.layout().config.head_dim),
      has_bias_(problem.key_bias() != nullptr),
      key_bias_(BiasOf(problem)),
      prompt_(DeviceArray<std::byte>::Poisoned(layout_.bytes)),
      values_(problem.value_prompt_bytes().data(), layout_.coded.value_bytes) {}

ShadowKvEncodeParams DeviceShadowKvPrompt::params() const {
  return {.layout = layout_,
          .pages = {.base = pages_.data(), .layout = pages_layout_},
          .page_table = page_table_.data(),
          .rope = rope_.get(),
          .key_bias = has_bias_ ? key_bias_.data() : nullptr,
          .prompt = prompt_.data(),
          .values = values_.data()};
}

std::vector<std::byte> DeviceShadowKvPrompt::Encode(const OpTable& ops,
                                                    const ExecContext& context) const {
  prompt_.Set(std::vector<std::byte>(prompt_.size(), std::byte{0xff}));
  std::ranges::fill(values_.bytes(), std::byte{0xff});
  absl::Status status = ops.shadowkv_encode(context, params());
  EXPECT_TRUE(status.ok()) << status;
  status = context.queue->Wait();
  EXPECT_TRUE(status.ok()) << status;
  return prompt_.Get();
}

void DeviceShadowKvPrompt::ClearPages() const { pages_.Set(std::vector<std::byte>(pages_.size())); }

}  // namespace baton::kernels::cuda
