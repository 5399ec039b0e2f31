#include "common/kv/codec/shadowkv/shadowkv_map.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/shadowkv/layer_groups.h"
#include "kernels/core/buffer.h"
#include "kernels/core/round_up.h"
#include "kernels/kv_format/shadowkv.h"

namespace baton::kv {
namespace {

// With joint coefficients or values apart, a page is a 64th of the largest layer, so that padding
// is below a 64th of the memory, twice with values apart, but no smaller than this.
constexpr size_t kPagesOfLargest = 64;
constexpr size_t kLeastPageBytes = 4096;

size_t Aligned(size_t bytes) { return kernels::RoundUp(bytes, kernels::Buffer::kAlignment); }

int32_t BudgetOf(const CodecContext& context, int32_t budget_tokens, int32_t kv_layer) {
  return context.calibration == nullptr
             ? budget_tokens
             : ScaledBudget(budget_tokens, context.calibration->budget_weight(kv_layer));
}

}  // namespace

ShadowKvMap::ShadowKvMap(const CodecContext& context,
                         const kernels::ShadowKvConfig& config,
                         int32_t joint_rank,
                         int64_t prompt_tokens) {
  const int32_t layers = context.dimensions.layers;
  if (joint_rank > 0) {
    FormGroups(context);
  }
  for (int32_t kv_layer = 0; kv_layer < layers; ++kv_layer) {
    kernels::ShadowKvConfig layer = config;
    layer.joint = group_of(kv_layer) >= 0;
    layer.rank = static_cast<int32_t>(std::min<int64_t>(
        layer.joint ? joint_rank : config.rank, layers_factored(kv_layer) * config.width()));
    layer.budget_tokens = BudgetOf(context, config.budget_tokens, kv_layer);
    layouts_.emplace_back(layer, prompt_tokens);
  }
  Place();
}

// As many layers in a group as the width of a Gram matrix allows.
void ShadowKvMap::FormGroups(const CodecContext& context) {
  const int64_t width = int64_t{context.dimensions.kv_heads} * context.dimensions.head_dim;
  const auto most =
      static_cast<int32_t>(std::max<int64_t>(1, kernels::kShadowKvMaxJointWidth / width));
  for (const LayerGroup& group : EvenGroups(context.full_layers, context.dimensions.layers, most)) {
    groups_.push_back({.begin = group.begin, .end = group.end});
  }
}

int32_t ShadowKvMap::group_of(int32_t kv_layer) const {
  const auto found = std::ranges::find_if(groups_, [&](const JointGroup& group) {
    return group.begin <= kv_layer && kv_layer < group.end;
  });
  return found == groups_.end() ? -1 : static_cast<int32_t>(found - groups_.begin());
}

int64_t ShadowKvMap::layers_factored(int32_t kv_layer) const {
  const int32_t group = group_of(kv_layer);
  return group < 0
             ? 1
             : groups_[static_cast<size_t>(group)].end - groups_[static_cast<size_t>(group)].begin;
}

size_t ShadowKvMap::used_bytes(int32_t kv_layer) const {
  const kernels::ShadowKvPromptLayout& layout = this->layout(kv_layer);
  const int32_t group = group_of(kv_layer);
  const bool holds = group >= 0 && groups_[static_cast<size_t>(group)].begin == kv_layer;
  return layout.bytes +
         (holds ? kernels::ShadowKvCoefficientLayout(layout.config, layout.coded.tokens).bytes : 0);
}

size_t ShadowKvMap::used_value_bytes(int32_t kv_layer) const {
  const kernels::ShadowKvPromptLayout& layout = this->layout(kv_layer);
  const int64_t vectors = layout.config.kv_heads * layout.coded.tokens;
  return values_apart() ? static_cast<size_t>(vectors) * layout.config.coded_value_bytes() : 0;
}

void ShadowKvMap::Place() {
  size_t largest = 0;
  for (int32_t kv_layer = 0; kv_layer < layers(); ++kv_layer) {
    largest = std::max(largest, used_bytes(kv_layer) + used_value_bytes(kv_layer));
  }
  const bool one_page = groups_.empty() && !values_apart();
  page_bytes_ = one_page ? largest : std::max(kLeastPageBytes, Aligned(largest / kPagesOfLargest));
  prompt_begins_.push_back(0);
  value_begins_.push_back(0);
  for (int32_t kv_layer = 0; kv_layer < layers(); ++kv_layer) {
    prompt_begins_.push_back(prompt_begins_.back() +
                             kernels::RoundUp(used_bytes(kv_layer), page_bytes_));
    value_begins_.push_back(value_begins_.back() +
                            kernels::RoundUp(used_value_bytes(kv_layer), page_bytes_));
    most_pages_ = std::max(most_pages_, pages(kv_layer));
  }
  for (JointGroup& group : groups_) {
    group.coefficients = prompt_begin(group.begin) + layout(group.begin).bytes;
  }
}

int32_t ShadowKvMap::PagesOf(const std::vector<size_t>& begins, int32_t kv_layer) const {
  const auto layer = static_cast<size_t>(kv_layer);
  return static_cast<int32_t>((begins[layer + 1] - begins[layer]) / page_bytes_);
}

size_t ShadowKvMap::JointTailBytes(const JointGroup& group, int64_t blocks) const {
  return kernels::ShadowKvTailLayout(layout(group.begin), 0).joint_block_begin(blocks);
}

TailMap ShadowKvMap::Tails(int64_t behind) const {
  TailMap map;
  map.begins.push_back(0);
  for (const kernels::ShadowKvPromptLayout& layout : layouts_) {
    const kernels::ShadowKvTailLayout tail(layout, behind);
    map.begins.push_back(map.begins.back() + (behind == 0 ? 0 : Aligned(tail.bytes)));
  }
  for (const JointGroup& group : groups_) {
    const kernels::ShadowKvTailLayout tail(layout(group.begin), behind);
    map.begins.push_back(map.begins.back() + Aligned(JointTailBytes(group, tail.block_count)));
  }
  return map;
}

TailMap ShadowKvMap::ValueTails(int64_t behind) const {
  TailMap map;
  map.begins.push_back(0);
  for (const kernels::ShadowKvPromptLayout& layout : layouts_) {
    const kernels::ShadowKvTailLayout tail(layout, behind);
    map.begins.push_back(map.begins.back() + Aligned(tail.value_block_begin(tail.block_count)));
  }
  return map;
}

size_t ShadowKvMap::WrittenTailBytes(int64_t behind) const {
  size_t bytes = 0;
  for (const kernels::ShadowKvPromptLayout& layout : layouts_) {
    bytes += kernels::ShadowKvTailLayout(layout, behind).WrittenBytes(behind);
  }
  for (const JointGroup& group : groups_) {
    const kernels::ShadowKvTailLayout tail(layout(group.begin), behind);
    bytes += JointTailBytes(group, tail.block_count);
  }
  return bytes;
}

}  // namespace baton::kv
