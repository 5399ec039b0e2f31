// The KV of one sequence in format `shadowkv`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/block_cache.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/held_tokens.h"
#include "common/kv/codec/shadowkv/layer_groups.h"
#include "common/kv/codec/shadowkv/shadowkv_call.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/codec/shadowkv/shadowkv_device_arrays.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/codec/shadowkv/tailed_run.h"
#include "common/kv/codec/staged_window.h"
#include "common/kv/codec/step_kv.h"
#include "common/kv/pool/page_copies.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/step_arrays.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

// What codes the joint coefficients of a tail's block: a sequence in the layers of a group.
struct ShadowKvJointBlock {
  std::vector<kernels::ShadowKvSequence> layers;
  std::vector<const float*> key_biases;  // by layer, null without
};

// One run of the pool: the prompt memory of all layers, then their tails (ShadowKvMap). Values
// apart (vplace=host) are such a run too, on a device of a pool in the host's memory. Threads:
// encoded_kv.h.
//
// In an extension every new token selects from the prompt section and the tail as a decode step
// would, with the budget of the first prompt, and attends to its extension's tokens exactly; then
// they join the tail like generated ones.
//
// On a device the host doesn't look at the run, and reads the counters every kFetchedTokens tokens
// alone: in between counters() is behind. Hits and misses of extensions are not counted there. What
// was promised for an answer stays taken until the next extension, which has its tails elsewhere:
// its first step moves them, and Trim gives back where they were.
class ShadowKvSequence final : public EncodedKv {
 public:
  // Generated tokens after which the host reads counters from a device again. A read is a copy that
  // the host waits for.
  static constexpr int64_t kFetchedTokens = 32;

  // `memory`: of map.prompt_bytes() and map.Tails(max_tokens). `values`: with values apart of
  // map.value_bytes() and map.ValueTails(max_tokens), else null. `device`: on a device the arrays
  // for the map's layers; null on the host.
  ShadowKvSequence(ShadowKvCodec& codec,
                   ShadowKvMap map,
                   int64_t max_tokens,
                   std::unique_ptr<TailedRun> memory,
                   std::unique_ptr<TailedRun> values,
                   std::unique_ptr<ShadowKvDeviceArrays> device);

  KvCodec& codec() const override { return codec_; }
  int64_t tokens() const override { return held_.tokens(); }
  absl::Status PrepareStep() override;
  int64_t first_observed() const override { return prompt_tokens(); }
  absl::Status Observe(const WorkingKv& /*working*/,
                       const PromptRows& /*rows*/,
                       const KvQueries& /*queries*/) override {
    return absl::OkStatus();
  }
  absl::Status TokensWritten(const WorkingKv& working, int64_t tokens) override;
  absl::Status EncodeLayer(const WorkingKv& working, int32_t kv_layer) override;
  absl::Status Settle() override;
  absl::Status PrepareExtension(const WorkingKv& working,
                                const PromptRows& rows,
                                kernels::StepArrays& arrays) override;
  // queries.lse is scratch, and never null.
  absl::Status AttendExtension(const WorkingKv& working,
                               const PromptRows& rows,
                               const KvQueries& queries) override;
  EncodedLayer LayerPages(int32_t kv_layer) const override;
  absl::StatusOr<CodedLayer> FollowCoding(kernels::CopyQueue& copies, int32_t kv_layer) override;
  std::string State() const override { return {}; }
  std::vector<std::span<std::byte>> Window(int32_t kv_layer, int32_t pages) override;
  absl::Status Adopt(std::string_view state, int32_t layers) override;
  absl::Status AdoptStaged(std::string_view state,
                           int32_t layers,
                           const StagedWindow& staged) override;
  absl::StatusOr<std::vector<int32_t>> SentPages(std::string_view state,
                                                 int32_t layers) const override;
  void Trim() override;
  void Shrink() override;
  // kUnimplemented for a sequence that was extended.
  absl::Status CopyTo(EncodedKv& other, std::vector<PageCopies>& copies) const override;
  int64_t ResidentBytes() const override;
  int64_t ReservedBytes() const override;
  int64_t CacheBytes() const override { return static_cast<int64_t>(cache_begin_.back()); }
  AttentionCounters counters() const override;

  // EncodedFormat::Extend.
  bool Extend(int64_t prompt_tokens, int64_t max_tokens);
  // Before the first token is decoded: memory for what the next step finds again. Where there is
  // none the sequence goes without.
  absl::Status MakeCache();
  // The sequence as the ops see it, its newest token at `position`; row 0.
  kernels::ShadowKvSequence AtStep(int32_t kv_layer, int32_t position);
  // What has to be known of it beforehand.
  void AddTo(ShadowKvCallSizes& sizes, int32_t kv_layer, int32_t position) const {
    sizes.Add(map_.layout(kv_layer), position, !cache_.empty());
  }
  size_t workspace_bytes() const { return workspace_bytes_; }
  // The token at `position` was appended to a layer.
  void NoteAppended(int32_t position) { held_.Append(position); }
  const std::vector<JointGroup>& groups() const { return map_.groups(); }
  // The joint coefficients that are due once the token at `position` is in all layers of the group;
  // nothing in most steps.
  std::optional<ShadowKvJointBlock> JointBlockDue(const JointGroup& group, int32_t position);
  // Counts one query of every head of a layer.
  void CountAttention() { attended_heads_ += map_.layout(0).config.kv_heads; }

 private:
  // Rows of an extension in a tile, as ops take them.
  struct ExtensionTile {
    PromptRows rows;
    std::vector<kernels::SequenceRows> working;  // [layers]: over the extension's own keys
    const kernels::SequenceRows* op_working = nullptr;
    std::vector<kernels::ShadowKvSequence> stored;  // [layers][rows]: over what was held before
    const kernels::ShadowKvSequence* op_stored = nullptr;
    std::vector<ShadowKvCallSizes> sizes;  // [layers]: of calls with such rows
  };

  bool on_host() const { return device_ == nullptr; }
  absl::Status ZeroPadding(const kernels::ExecContext& exec, int32_t kv_layer);
  absl::Status EncodePrompt(const WorkingKv& working, int32_t kv_layer);
  // Where a layer is encoded, or what of it does not depend on factors of its group.
  absl::StatusOr<kernels::ExecContext> ExecToEncode(int32_t kv_layer);
  // The group of `factored_groups_` that a layer belongs to, as an index; -1: none.
  int32_t FactoredGroupOf(int32_t kv_layer) const;
  // Where such a group is factored, and before that its tokens are added up.
  absl::StatusOr<kernels::ExecContext> ExecToFactor(int32_t group);
  absl::Status FactorLayers(const WorkingKv& working, int32_t group);
  // Adds the tokens from gram_tokens_ to `tokens` to the sums of such a group.
  absl::Status AddGrams(const WorkingKv& working, int32_t group, int64_t tokens);
  // Of a layer of such a group; null without grams_.
  double* gram(int32_t kv_layer) const;
  // A layer as ops take it that factor several, and such a group.
  kernels::ShadowKvJointLayer FactoredLayer(const WorkingKv& working, int32_t kv_layer) const;
  using FactoredLayers = std::array<kernels::ShadowKvJointLayer, kernels::kShadowKvMostFactored>;
  FactoredLayers LayersOf(const WorkingKv& working, const LayerGroup& group) const;
  absl::Status EncodeJoint(const WorkingKv& working, const JointGroup& group);
  // Codes what is due in the group of a layer once the token at `position` is in all layers of it.
  absl::Status CodeJoint(int32_t kv_layer, int32_t position);
  // On a device: reads what the host follows.
  absl::Status Fetch();
  // Describes the rows of a tile in a layer.
  void AddLayer(const PromptRows& rows, int32_t kv_layer, ExtensionTile& tile);
  // Attention of the rows over what was held before, merged into what queries.out and queries.lse
  // hold.
  absl::Status AttendStored(const ExtensionTile& tile, const KvQueries& queries);
  absl::Status AttendSelected(ShadowKvCall call,
                              const KvQueries& queries,
                              ShadowKvSelection selection);
  void CountExtension(const PromptRows& rows, int32_t kv_layer);
  // Takes the extension's tokens into layers [layer_begin, layer_end).
  absl::Status AppendWorking(const WorkingKv& working, int32_t layer_begin, int32_t layer_end);
  // Those at positions [first, end), which one call may append.
  absl::Status AppendWorkingTokens(const WorkingKv& working,
                                   int32_t kv_layer,
                                   int64_t first,
                                   int64_t end);
  int64_t prompt_tokens() const { return map_.layout(0).prompt_tokens; }
  int64_t tokens_behind() const { return held_.tokens() - prompt_tokens(); }
  std::byte* prompt(int32_t kv_layer) const {
    return memory_->prompt() + map_.prompt_begin(kv_layer);
  }
  // Values apart of a layer; null without.
  std::byte* values(int32_t kv_layer) const {
    return values_ == nullptr ? nullptr : values_->prompt() + map_.value_begin(kv_layer);
  }
  // Page `index` of a layer.
  std::span<std::byte> Page(int32_t kv_layer, int32_t index) const;
  // What of a landed section other memory is addressed by.
  struct LandedIds {
    std::vector<int32_t> static_chunks;  // [kv_heads][static_chunks]
    std::vector<uint8_t> clusters;       // [kv_heads][tokens]
  };

  // read(reads) copies bytes of landed sections to the host.
  template <typename Read>
  absl::Status AdoptSections(std::string_view state, int32_t layers, const Read& read);
  // Room for those of a layer, and what is to be read into it.
  void AskForIds(int32_t kv_layer, LandedIds& ids, std::vector<SectionRead>& reads) const;
  absl::Status CheckStaticIds(int32_t kv_layer, std::span<const int32_t> ids) const;
  absl::Status CheckClusterIds(int32_t kv_layer, std::span<const uint8_t> ids) const;

  ShadowKvCodec& codec_;
  const ShadowKvMap map_;
  int64_t max_tokens_;           // behind the prompt
  int64_t extension_begin_ = 0;  // tokens held when the newest extension began
  // By joint group: layers that EncodeLayer was called for since the prompt or extension began.
  std::vector<int32_t> encoded_layers_;
  const int32_t layers_factored_;  // ShadowKvCodec::LayersFactored
  // Upper layers that are factored at the same time; none where each is factored by itself.
  std::vector<LayerGroup> factored_groups_;
  bool factored_ = false;  // FactorLayers was called for all of them
  // Sums for their layers, from a prompt's second step on until it is factored; often none.
  BlockCache::Block grams_;
  int64_t gram_tokens_ = 0;  // that are in grams_
  // Where each layer's cache begins, and the end of the last.
  const std::vector<size_t> cache_begin_;
  // On a device: null elsewhere.
  const std::unique_ptr<ShadowKvDeviceArrays> device_;
  bool filled_ = false;  // device_ is
  const std::unique_ptr<TailedRun> memory_;
  const std::unique_ptr<TailedRun> values_;  // null: in their place
  size_t workspace_bytes_;
  BlockCache::Block cache_;  // [layers]
  bool cache_made_ = false;  // or there was no memory for one
  HeldTokens held_;
  int64_t attended_heads_ = 0;
  // By the rows of extensions: their own tokens, on a device all.
  int64_t attended_extension_ = 0;
  std::vector<ExtensionTile> extension_tiles_;  // of the running step
  // On the host ops add to it; on a device as it was fetched, with the heads of then.
  kernels::ShadowKvCounters counters_;
  int64_t fetched_tokens_;
  int64_t fetched_heads_ = 0;
};

}  // namespace baton::kv
