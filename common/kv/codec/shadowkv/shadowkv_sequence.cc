#include "common/kv/codec/shadowkv/shadowkv_sequence.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/core/buffer.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {
namespace {

size_t Aligned(size_t bytes) {
  return (bytes + kernels::Buffer::kAlignment - 1) / kernels::Buffer::kAlignment *
         kernels::Buffer::kAlignment;
}

std::vector<kernels::ShadowKvPromptLayout> LayoutsByLayer(
    const CodecContext& context, const kernels::ShadowKvPromptLayout& layout) {
  std::vector<kernels::ShadowKvPromptLayout> layouts(static_cast<size_t>(context.dimensions.layers),
                                                     layout);
  if (context.calibration != nullptr) {
    for (size_t i = 0; i < layouts.size(); ++i) {
      const float weight = context.calibration->budget_weight(static_cast<int32_t>(i));
      layouts[i].config.budget_tokens = ScaledBudget(layout.config.budget_tokens, weight);
    }
  }
  return layouts;
}

std::vector<size_t> CacheBegins(std::span<const kernels::ShadowKvPromptLayout> layouts) {
  std::vector<size_t> begins = {0};
  for (const kernels::ShadowKvPromptLayout& layout : layouts) {
    begins.push_back(begins.back() + Aligned(kernels::ShadowKvCacheLayout(layout.config).bytes));
  }
  return begins;
}

}  // namespace

size_t ShadowKvSequence::LargestWorkspace(int64_t tokens) const {
  size_t bytes = 0;
  for (const kernels::ShadowKvPromptLayout& layout : layouts_) {
    bytes = std::max(bytes, codec_.WorkspaceBytes(layout.config, tokens));
  }
  return bytes;
}

// Without room for a token there is no tail: the prompt is for another worker, or only kept.
size_t ShadowKvSequence::TailBytes(const kernels::ShadowKvPromptLayout& layout, int64_t behind) {
  return behind == 0 ? 0 : Aligned(kernels::ShadowKvTailLayout(layout, behind).bytes);
}

int64_t ShadowKvSequence::RunBytes(const kernels::ShadowKvConfig& config,
                                   int32_t layers,
                                   int64_t prompt_tokens,
                                   int64_t max_tokens) {
  const kernels::ShadowKvPromptLayout layout(config, prompt_tokens);
  return layers * static_cast<int64_t>(layout.bytes + TailBytes(layout, max_tokens));
}

ShadowKvSequence::ShadowKvSequence(ShadowKvCodec& codec,
                                   const kernels::ShadowKvConfig& config,
                                   int64_t prompt_tokens,
                                   int64_t max_tokens,
                                   RunPool::Run run)
    : codec_(codec),
      layout_(config, prompt_tokens),
      layers_(codec.context().dimensions.layers),
      layouts_(LayoutsByLayer(codec.context(), layout_)),
      max_tokens_(max_tokens),
      tail_bytes_(TailBytes(layout_, max_tokens)),
      cache_begin_(CacheBegins(layouts_)),
      run_(run),
      base_(codec.pool().bytes(run).data()),
      tails_(base_ + PromptBytes()),
      workspace_bytes_(LargestWorkspace(prompt_tokens + max_tokens)),
      held_(layers_, prompt_tokens) {
  BATON_CHECK(run.units == RunPool::UnitsFor(RunBytes(config, layers_, prompt_tokens, max_tokens)));
}

ShadowKvSequence::~ShadowKvSequence() {
  codec_.pool().Release(run_);
  if (tail_run_.units > 0) {
    codec_.pool().Release(tail_run_);
  }
}

std::byte* ShadowKvSequence::prompt(int32_t kv_layer) const {
  return base_ + static_cast<size_t>(kv_layer) * layout_.bytes;
}

std::byte* ShadowKvSequence::tail(int32_t kv_layer) const {
  return tails_ + static_cast<size_t>(kv_layer) * tail_bytes_;
}

absl::Status ShadowKvSequence::EncodeLayer(const WorkingKv& working, int32_t kv_layer) {
  if (extension_begin_ > 0) {
    BATON_RETURN_IF_ERROR(AppendWorking(working, kv_layer));
  } else {
    BATON_RETURN_IF_ERROR(codec_.context().ops->shadowkv_encode(
        codec_.ExecWith(workspace_bytes_),
        {.layout = layout_,
         .pages = working.pages,
         .page_table = working.table.data + static_cast<ptrdiff_t>(kv_layer) * working.table.stride,
         .rope = codec_.rope(),
         .key_bias = codec_.key_bias(kv_layer),
         .prompt = prompt(kv_layer)}));
  }
  held_.TakeLayers(1);
  return absl::OkStatus();
}

std::vector<std::span<const std::byte>> ShadowKvSequence::LayerPages(int32_t kv_layer) const {
  return {std::span<const std::byte>(prompt(kv_layer), layout_.bytes)};
}

std::vector<std::span<std::byte>> ShadowKvSequence::Window() {
  std::vector<std::span<std::byte>> window;
  window.reserve(static_cast<size_t>(layers_));
  for (int32_t kv_layer = 0; kv_layer < layers_; ++kv_layer) {
    window.emplace_back(prompt(kv_layer), layout_.bytes);
  }
  return window;
}

absl::StatusOr<std::vector<int32_t>> ShadowKvSequence::SentPages(std::string_view state,
                                                                 int32_t layers) const {
  if (!state.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shadowkv has no state beside its sections; ", state.size(), " bytes came"));
  }
  return std::vector<int32_t>(static_cast<size_t>(layers), 1);
}

// Ids index chunks in every decode step; everything else in a section is only computed with.
absl::Status ShadowKvSequence::CheckStaticIds(int32_t kv_layer) const {
  const std::byte* bytes = prompt(kv_layer) + layout_.static_ids;
  for (int32_t head = 0; head < layout_.config.kv_heads; ++head) {
    int64_t previous = -1;
    for (int64_t i = 0; i < layout_.static_chunks; ++i, bytes += sizeof(int32_t)) {
      int32_t id = 0;
      std::memcpy(&id, bytes, sizeof(id));
      if (id <= previous || id >= layout_.coded.chunks) {
        return absl::InvalidArgumentError(absl::StrCat("shadowkv section of layer ",
                                                       kv_layer,
                                                       ": static chunk ",
                                                       id,
                                                       " after ",
                                                       previous,
                                                       "; ids ascend below ",
                                                       layout_.coded.chunks));
      }
      previous = id;
    }
  }
  return absl::OkStatus();
}

// Cluster ids index sums in every decode step.
absl::Status ShadowKvSequence::CheckClusterIds(int32_t kv_layer) const {
  const int32_t clusters = layout_.config.value_clusters;
  if (clusters == 0) {
    return absl::OkStatus();
  }
  const auto* ids = reinterpret_cast<const uint8_t*>(prompt(kv_layer) + layout_.coded_begin +
                                                     layout_.coded.cluster_ids);
  const uint8_t* end = ids + layout_.config.kv_heads * layout_.coded.tokens;
  const uint8_t* bad = std::find_if(ids, end, [&](uint8_t id) { return id >= clusters; });
  if (bad != end) {
    return absl::InvalidArgumentError(absl::StrCat("shadowkv section of layer ",
                                                   kv_layer,
                                                   ": value cluster ",
                                                   int{*bad},
                                                   "; ids are below ",
                                                   clusters));
  }
  return absl::OkStatus();
}

absl::Status ShadowKvSequence::Adopt(std::string_view state, int32_t layers) {
  BATON_RETURN_IF_ERROR(SentPages(state, layers).status());
  for (int32_t kv_layer = 0; kv_layer < layers; ++kv_layer) {
    BATON_RETURN_IF_ERROR(CheckStaticIds(kv_layer));
    BATON_RETURN_IF_ERROR(CheckClusterIds(kv_layer));
  }
  held_.TakeLayers(layers);
  return absl::OkStatus();
}

absl::Status ShadowKvSequence::CopyTo(EncodedKv& other) const {
  if (extension_begin_ > 0) {
    return absl::UnimplementedError("shadowkv: a sequence that was extended can't be copied");
  }
  auto& target = static_cast<ShadowKvSequence&>(other);
  std::memcpy(target.base_, base_, static_cast<size_t>(layers_) * layout_.bytes);
  target.held_ = held_;
  return absl::OkStatus();
}

int64_t ShadowKvSequence::ResidentBytes() const {
  const int64_t behind = std::max<int64_t>(0, held_.tokens() - layout_.prompt_tokens);
  const kernels::ShadowKvTailLayout tail(layout_, max_tokens_);
  return layers_ * static_cast<int64_t>(layout_.bytes + tail.WrittenBytes(behind));
}

int64_t ShadowKvSequence::ReservedBytes() const {
  return (run_.units + tail_run_.units) * static_cast<int64_t>(RunPool::kUnitBytes);
}

kernels::ShadowKvSequence ShadowKvSequence::AtStep(int32_t kv_layer, int32_t position) {
  if (cache_.size() == 0) {
    cache_ = kernels::Buffer(cache_begin_.back());
  }
  const auto layer = static_cast<size_t>(kv_layer);
  return {.layout = &layouts_[layer],
          .prompt = prompt(kv_layer),
          .tail = tail(kv_layer),
          .max_generated = max_tokens_,
          .position = position,
          .cache = cache_.data() + cache_begin_[layer]};
}

void ShadowKvSequence::Count(const kernels::ShadowKvCounters& counters) {
  counters_.heads += layout_.config.kv_heads;
  counters_.attended_tokens += counters.attended_tokens;
  counters_.hits += counters.hits;
  counters_.misses += counters.misses;
}

}  // namespace baton::kv
