// Several layers of a prompt to be coded, on the device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/support/device_shadowkv.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/shadowkv_joint_problem.h"

namespace baton::kernels::cuda {

// Layers of a joint problem on the device.
class DeviceShadowKvLayers {
 public:
  // Sections have room for `most_bytes`, if those are more than the joint problem's.
  explicit DeviceShadowKvLayers(const ShadowKvJointProblem& problem, size_t most_bytes = 0)
      : layout_(problem.layout()), rope_(Host(problem).rope, layout_.config.head_dim) {
    const ShadowKvEncodeJointParams host = Host(problem);
    const auto count = static_cast<size_t>(host.pages.layout.pages_for(layout_.prompt_tokens));
    pages_layout_ = host.pages.layout;
    pages_ = std::make_unique<DeviceArray<std::byte>>(std::span<const std::byte>(
        host.pages.base,
        count * static_cast<size_t>(problem.layers()) * pages_layout_.stride_bytes()));
    std::vector<ShadowKvJointLayer> layers;
    for (const ShadowKvJointLayer& layer : problem.Layers()) {
      tables_.emplace_back(std::span(layer.page_table, count));
      biases_.emplace_back(std::span(layer.key_bias, static_cast<size_t>(layout_.config.width())));
      prompts_.push_back(DeviceArray<std::byte>::Poisoned(std::max(layout_.bytes, most_bytes)));
      layers.push_back({.page_table = tables_.back().data(),
                        .key_bias = biases_.back().data(),
                        .prompt = prompts_.back().data()});
    }
    layers_ = std::make_unique<DeviceArray<ShadowKvJointLayer>>(layers);
    coefficients_ = std::make_unique<DeviceArray<std::byte>>(
        DeviceArray<std::byte>::Poisoned(problem.coefficients().size()));
  }

  ShadowKvEncodeJointParams params() const {
    return {.layout = layout_,
            .pages = {.base = pages_->data(), .layout = pages_layout_},
            .layers = layers_->data(),
            .num_layers = static_cast<int64_t>(prompts_.size()),
            .rope = rope_.get(),
            .coefficients = coefficients_->data()};
  }
  // To code a layer by itself. `layout`: not a joint one, of no more bytes.
  ShadowKvEncodeParams params(const ShadowKvPromptLayout& layout, size_t layer) const {
    return {.layout = layout,
            .pages = {.base = pages_->data(), .layout = pages_layout_},
            .page_table = tables_[layer].data(),
            .rope = rope_.get(),
            .key_bias = biases_[layer].data(),
            .prompt = prompts_[layer].data()};
  }
  void Poison(size_t layer) const {
    prompts_[layer].Set(std::vector<std::byte>(prompts_[layer].size(), std::byte{0xff}));
  }
  size_t layers() const { return prompts_.size(); }
  std::vector<std::byte> prompt(size_t layer) const { return prompts_[layer].Get(); }
  std::vector<std::byte> coefficients() const { return coefficients_->Get(); }

 private:
  static ShadowKvEncodeJointParams Host(const ShadowKvJointProblem& problem) {
    return problem.EncodeParams({}, nullptr);
  }

  ShadowKvPromptLayout layout_;
  DensePageLayout pages_layout_;
  DeviceShadowKvRope rope_;
  std::unique_ptr<DeviceArray<std::byte>> pages_;
  std::vector<DeviceArray<int32_t>> tables_;
  std::vector<DeviceArray<float>> biases_;
  std::vector<DeviceArray<std::byte>> prompts_;
  std::unique_ptr<DeviceArray<ShadowKvJointLayer>> layers_;
  std::unique_ptr<DeviceArray<std::byte>> coefficients_;
};

}  // namespace baton::kernels::cuda
