#include "common/kv/codec/shadowkv/shadowkv_sequence.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/pieces.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/block_cache.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/shadowkv/layer_groups.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/codec/shadowkv/shadowkv_device_arrays.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/codec/shadowkv/tailed_run.h"
#include "common/kv/codec/staged_window.h"
#include "common/kv/pool/page_copies.h"
#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/side_queues.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {
namespace {

size_t Aligned(size_t bytes) {
  return (bytes + kernels::Buffer::kAlignment - 1) / kernels::Buffer::kAlignment *
         kernels::Buffer::kAlignment;
}

std::vector<size_t> CacheBegins(const ShadowKvMap& map, kernels::ShadowKvCachedValues values) {
  std::vector<size_t> begins = {0};
  for (const kernels::ShadowKvPromptLayout& layout : map.layouts()) {
    const kernels::ShadowKvCacheLayout cache(layout.config, values);
    begins.push_back(begins.back() + Aligned(cache.bytes));
  }
  return begins;
}

}  // namespace

ShadowKvSequence::ShadowKvSequence(ShadowKvCodec& codec,
                                   ShadowKvMap map,
                                   int64_t max_tokens,
                                   std::unique_ptr<TailedRun> memory,
                                   std::unique_ptr<TailedRun> values,
                                   std::unique_ptr<ShadowKvDeviceArrays> device)
    : codec_(codec),
      map_(std::move(map)),
      max_tokens_(max_tokens),
      encoded_layers_(map_.groups().size()),
      layers_factored_(codec.LayersFactored(map_, prompt_tokens() + max_tokens)),
      cache_begin_(CacheBegins(map_, codec.context().ops->shadowkv_cached_values)),
      device_(std::move(device)),
      memory_(std::move(memory)),
      values_(std::move(values)),
      workspace_bytes_(codec.WorkspaceBytes(map_, prompt_tokens() + max_tokens, layers_factored_)),
      held_(map_.layers(), prompt_tokens()),
      fetched_tokens_(prompt_tokens()) {
  BATON_CHECK(map_.values_apart() == (values_ != nullptr));
  if (layers_factored_ > 1) {
    factored_groups_ = EvenGroups(codec.context().full_layers, map_.layers(), layers_factored_);
  }
}

absl::Status ShadowKvSequence::PrepareStep() {
  extension_tiles_.clear();
  if (on_host()) {
    return absl::OkStatus();
  }
  kernels::MemorySpace& space = *codec_.context().exec.memory;
  if (!filled_) {
    BATON_RETURN_IF_ERROR(device_->Fill(space, map_.layouts()));
    filled_ = true;
  }
  BATON_RETURN_IF_ERROR(memory_->MoveTails(space));
  if (values_ != nullptr) {
    BATON_RETURN_IF_ERROR(values_->MoveTails(space));
  }
  return held_.tokens() - fetched_tokens_ >= kFetchedTokens ? Fetch() : absl::OkStatus();
}

absl::Status ShadowKvSequence::Fetch() {
  BATON_ASSIGN_OR_RETURN(counters_, device_->Fetch(*codec_.context().exec.memory));
  fetched_tokens_ = held_.tokens();
  fetched_heads_ = attended_heads_;
  return absl::OkStatus();
}

absl::Status ShadowKvSequence::Settle() {
  grams_ = {};
  gram_tokens_ = 0;
  return absl::OkStatus();
}

absl::Status ShadowKvSequence::EncodeLayer(const WorkingKv& working, int32_t kv_layer) {
  const bool extends = extension_begin_ > 0;
  const int32_t index = map_.group_of(kv_layer);
  if (index < 0) {
    BATON_RETURN_IF_ERROR(extends ? AppendWorking(working, kv_layer, kv_layer + 1)
                                  : EncodePrompt(working, kv_layer));
  } else {
    const JointGroup& group = map_.groups()[static_cast<size_t>(index)];
    const int32_t encoded = ++encoded_layers_[static_cast<size_t>(index)];
    if (!extends && encoded == 1) {
      BATON_RETURN_IF_ERROR(EncodeJoint(working, group));
    }
    if (!extends) {
      BATON_RETURN_IF_ERROR(EncodePrompt(working, kv_layer));
    } else if (encoded == group.end - group.begin) {
      BATON_RETURN_IF_ERROR(AppendWorking(working, group.begin, group.end));
    }
  }
  held_.TakeLayers(1);
  return absl::OkStatus();
}

// What of a layer's last pages is not written.
absl::Status ShadowKvSequence::ZeroPadding(const kernels::ExecContext& exec, int32_t kv_layer) {
  const auto padding = [&](std::byte* begin, size_t used, int32_t pages) {
    return std::span(begin, static_cast<size_t>(pages) * map_.page_bytes()).subspan(used);
  };
  const std::span<std::byte> behind =
      padding(prompt(kv_layer), map_.used_bytes(kv_layer), map_.prompt_pages(kv_layer));
  BATON_RETURN_IF_ERROR(exec.memory->Zero(behind.data(), behind.size()));
  if (values_ == nullptr) {
    return absl::OkStatus();
  }
  const std::span<std::byte> values_behind =
      padding(values(kv_layer), map_.used_value_bytes(kv_layer), map_.value_pages(kv_layer));
  if (!values_->on_host()) {
    return exec.memory->Zero(values_behind.data(), values_behind.size());
  }
  std::ranges::fill(values_behind, std::byte{0});
  return absl::OkStatus();
}

absl::Status ShadowKvSequence::EncodePrompt(const WorkingKv& working, int32_t kv_layer) {
  const bool factored = FactoredGroupOf(kv_layer) >= 0;
  if (factored && !std::exchange(factored_, true)) {
    for (size_t group = 0; group < factored_groups_.size(); ++group) {
      BATON_RETURN_IF_ERROR(FactorLayers(working, static_cast<int32_t>(group)));
    }
  }
  BATON_ASSIGN_OR_RETURN(const kernels::ExecContext exec, ExecToEncode(kv_layer));
  BATON_RETURN_IF_ERROR(ZeroPadding(exec, kv_layer));
  return codec_.context().ops->shadowkv_encode(
      exec,
      {.layout = map_.layout(kv_layer),
       .pages = working.pages,
       .page_table = working.table.data + static_cast<ptrdiff_t>(kv_layer) * working.table.stride,
       .rope = codec_.rope(),
       .key_bias = codec_.key_bias(kv_layer),
       .prompt = prompt(kv_layer),
       .values = values(kv_layer),
       .factored = factored});
}

// Layers that share coefficients are coded after them, so in turn. What of layers that are factored
// at the same time does not depend on that is coded beside it, when nothing else wants the device:
// factors are what the last byte waits for.
absl::StatusOr<kernels::ExecContext> ShadowKvSequence::ExecToEncode(int32_t kv_layer) {
  if (FactoredGroupOf(kv_layer) >= 0) {
    return codec_.ExecToEncode({.rank = kernels::SideRank::kLast, .index = kv_layer},
                               codec_.CodingBytes(map_, kv_layer, prompt_tokens(), /*factored=*/0));
  }
  const int32_t joint = map_.group_of(kv_layer);
  return codec_.ExecToEncode(
      {.index = joint < 0 ? kv_layer : map_.groups()[static_cast<size_t>(joint)].begin},
      workspace_bytes_);
}

std::span<std::byte> ShadowKvSequence::Page(int32_t kv_layer, int32_t index) const {
  const int32_t of_values = index - map_.prompt_pages(kv_layer);
  std::byte* const first = of_values < 0 ? prompt(kv_layer) : values(kv_layer);
  const auto page = static_cast<size_t>(of_values < 0 ? index : of_values);
  return {first + page * map_.page_bytes(), map_.page_bytes()};
}

EncodedLayer ShadowKvSequence::LayerPages(int32_t kv_layer) const {
  EncodedLayer layer = {.pages = map_.pages(kv_layer), .memory = {}};
  for (int32_t i = 0; i < layer.pages; ++i) {
    AddAdjacent<const std::byte>(Page(kv_layer, i), layer.memory);
  }
  return layer;
}

absl::StatusOr<CodedLayer> ShadowKvSequence::FollowCoding(kernels::CopyQueue& copies,
                                                          int32_t kv_layer) {
  BATON_ASSIGN_OR_RETURN(const kernels::ExecContext exec, ExecToEncode(kv_layer));
  BATON_RETURN_IF_ERROR(copies.Follow(exec));
  if (const int32_t group = FactoredGroupOf(kv_layer); group >= 0) {
    BATON_ASSIGN_OR_RETURN(const kernels::ExecContext factoring, ExecToFactor(group));
    BATON_RETURN_IF_ERROR(copies.Follow(factoring));
  }
  return [layer = LayerPages(kv_layer)] { return layer; };
}

// Layers that are smaller than the largest have windows of as many pages; those that they have no
// memory for are never sent (SentPages) and stand where their last page is.
std::vector<std::span<std::byte>> ShadowKvSequence::Window(int32_t kv_layer, int32_t pages) {
  std::vector<std::span<std::byte>> window;
  for (int32_t i = 0; i < pages; ++i) {
    AddAdjacent(Page(kv_layer, std::min(i, map_.pages(kv_layer) - 1)), window);
  }
  return window;
}

absl::StatusOr<std::vector<int32_t>> ShadowKvSequence::SentPages(std::string_view state,
                                                                 int32_t layers) const {
  if (!state.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shadowkv has no state beside its sections; ", state.size(), " bytes came"));
  }
  std::vector<int32_t> pages;
  pages.reserve(static_cast<size_t>(layers));
  for (int32_t kv_layer = 0; kv_layer < layers; ++kv_layer) {
    pages.push_back(map_.pages(kv_layer));
  }
  return pages;
}

void ShadowKvSequence::AskForIds(int32_t kv_layer,
                                 LandedIds& ids,
                                 std::vector<SectionRead>& reads) const {
  const kernels::ShadowKvPromptLayout& layout = map_.layout(kv_layer);
  const auto heads = static_cast<size_t>(layout.config.kv_heads);
  ids.static_chunks.resize(heads * static_cast<size_t>(layout.static_chunks));
  if (layout.config.value_clusters > 0) {
    ids.clusters.resize(heads * static_cast<size_t>(layout.coded.tokens));
  }
  const auto ask = [&](size_t begin, std::span<std::byte> target) {
    if (!target.empty()) {
      reads.push_back({.layer = kv_layer, .begin = begin, .target = target});
    }
  };
  ask(layout.static_ids, std::as_writable_bytes(std::span(ids.static_chunks)));
  ask(layout.coded_begin + layout.coded.cluster_ids,
      std::as_writable_bytes(std::span(ids.clusters)));
}

// Ids index chunks in every decode step; everything else in a section is only computed with.
absl::Status ShadowKvSequence::CheckStaticIds(int32_t kv_layer,
                                              std::span<const int32_t> ids) const {
  const kernels::ShadowKvPromptLayout& layout = map_.layout(kv_layer);
  auto next = ids.begin();
  for (int32_t head = 0; head < layout.config.kv_heads; ++head) {
    int64_t previous = -1;
    for (int64_t i = 0; i < layout.static_chunks; ++i) {
      const int32_t id = *next++;
      if (id <= previous || id >= layout.coded.chunks) {
        return absl::InvalidArgumentError(absl::StrCat("shadowkv section of layer ",
                                                       kv_layer,
                                                       ": static chunk ",
                                                       id,
                                                       " after ",
                                                       previous,
                                                       "; ids ascend below ",
                                                       layout.coded.chunks));
      }
      previous = id;
    }
  }
  return absl::OkStatus();
}

// Cluster ids index sums in every decode step.
absl::Status ShadowKvSequence::CheckClusterIds(int32_t kv_layer,
                                               std::span<const uint8_t> ids) const {
  const int32_t clusters = map_.layout(kv_layer).config.value_clusters;
  const auto bad = std::find_if(ids.begin(), ids.end(), [&](uint8_t id) { return id >= clusters; });
  if (bad != ids.end()) {
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
  return AdoptSections(state, layers, [this](std::span<const SectionRead> reads) {
    for (const SectionRead& read : reads) {
      std::copy_n(prompt(read.layer) + read.begin, read.target.size(), read.target.begin());
    }
    return absl::OkStatus();
  });
}

// The pages of a layer are one piece there, too.
absl::Status ShadowKvSequence::AdoptStaged(std::string_view state,
                                           int32_t layers,
                                           const StagedWindow& staged) {
  return AdoptSections(
      state, layers, [&staged](std::span<const SectionRead> reads) { return staged.Read(reads); });
}

// All layers' ids are read at once: a copy from a device takes some ten microseconds to be waited
// for.
template <typename Read>
absl::Status ShadowKvSequence::AdoptSections(std::string_view state,
                                             int32_t layers,
                                             const Read& read) {
  BATON_RETURN_IF_ERROR(SentPages(state, layers).status());
  std::vector<LandedIds> landed(static_cast<size_t>(layers));
  std::vector<SectionRead> reads;
  for (int32_t kv_layer = 0; kv_layer < layers; ++kv_layer) {
    AskForIds(kv_layer, landed[static_cast<size_t>(kv_layer)], reads);
  }
  BATON_RETURN_IF_ERROR(read(reads));
  for (int32_t kv_layer = 0; kv_layer < layers; ++kv_layer) {
    const LandedIds& ids = landed[static_cast<size_t>(kv_layer)];
    BATON_RETURN_IF_ERROR(CheckStaticIds(kv_layer, ids.static_chunks));
    BATON_RETURN_IF_ERROR(CheckClusterIds(kv_layer, ids.clusters));
  }
  held_.TakeLayers(layers);
  return absl::OkStatus();
}

absl::Status ShadowKvSequence::CopyTo(EncodedKv& other, std::vector<PageCopies>& copies) const {
  if (extension_begin_ > 0) {
    return absl::UnimplementedError("shadowkv: a sequence that was extended can't be copied");
  }
  auto& target = static_cast<ShadowKvSequence&>(other);
  target.held_ = held_;
  copies.push_back(memory_->PromptCopies(*target.memory_));
  if (values_ != nullptr) {
    copies.push_back(values_->PromptCopies(*target.values_));
  }
  return absl::OkStatus();
}

void ShadowKvSequence::Trim() {
  memory_->Trim();
  if (values_ != nullptr) {
    values_->Trim();
  }
}

int64_t ShadowKvSequence::ResidentBytes() const {
  const int64_t behind = std::max<int64_t>(0, tokens_behind());
  return static_cast<int64_t>(map_.prompt_bytes() + map_.value_bytes() +
                              map_.WrittenTailBytes(behind));
}

int64_t ShadowKvSequence::ReservedBytes() const {
  return memory_->ReservedBytes() + (values_ == nullptr ? 0 : values_->ReservedBytes());
}

absl::Status ShadowKvSequence::MakeCache() {
  if (std::exchange(cache_made_, true)) {
    return absl::OkStatus();
  }
  absl::StatusOr<BlockCache::Block> cache = codec_.blocks().Take(cache_begin_.back());
  if (!cache.ok()) {
    return absl::OkStatus();
  }
  kernels::MemorySpace& space = *codec_.context().exec.memory;
  for (int32_t kv_layer = 0; kv_layer < map_.layers(); ++kv_layer) {
    const kernels::ShadowKvCacheLayout layout(map_.layout(kv_layer).config,
                                              codec_.context().ops->shadowkv_cached_values);
    std::byte* const ids = cache->data() + cache_begin_[static_cast<size_t>(kv_layer)] + layout.ids;
    BATON_RETURN_IF_ERROR(space.Zero(ids, layout.slots - layout.ids));
  }
  cache_ = *std::move(cache);
  return absl::OkStatus();
}

kernels::ShadowKvSequence ShadowKvSequence::AtStep(int32_t kv_layer, int32_t position) {
  const auto layer = static_cast<size_t>(kv_layer);
  kernels::ShadowKvSequence sequence = {
      .layout = on_host() ? &map_.layout(kv_layer) : device_->layout(kv_layer),
      .prompt = prompt(kv_layer),
      .tail = memory_->tail(layer),
      .max_generated = max_tokens_,
      .position = position,
      .cache = cache_.empty() ? nullptr : cache_.data() + cache_begin_[layer],
      .counters = on_host() ? &counters_ : device_->counters()};
  if (const int32_t group = map_.group_of(kv_layer); group >= 0) {
    const auto index = static_cast<size_t>(group);
    sequence.joint_prompt = memory_->prompt() + map_.groups()[index].coefficients;
    sequence.joint_tail = memory_->tail(static_cast<size_t>(map_.layers()) + index);
  }
  if (values_ != nullptr) {
    sequence.value_prompt = values(kv_layer);
    sequence.value_tail = values_->tail(layer);
  }
  return sequence;
}

AttentionCounters ShadowKvSequence::counters() const {
  return {.heads = on_host() ? attended_heads_ : fetched_heads_,
          .attended_tokens = counters_.attended_tokens + attended_extension_,
          .hits = counters_.hits,
          .misses = counters_.misses};
}

}  // namespace baton::kv
