// The KV of one sequence in format `shadowkv`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/held_tokens.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/core/buffer.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

// One run of the pool: the prompt memory of all layers, then their tails (ShadowKvMap). A sequence
// that was extended has its tails, which grew, in a run of their own. Threads: encoded_kv.h.
//
// In an extension every new token selects from the prompt section and the tail as a decode step
// would, with the budget of the first prompt, and attends to its extension's tokens exactly; then
// they join the tail like generated ones.
class ShadowKvSequence final : public EncodedKv {
 public:
  // Bytes of the run that such a sequence needs; the same whatever the budget.
  static int64_t RunBytes(const ShadowKvMap& map, int64_t max_tokens);

  // Takes over `run`, of RunBytes.
  ShadowKvSequence(ShadowKvCodec& codec, ShadowKvMap map, int64_t max_tokens, RunPool::Run run);
  ~ShadowKvSequence() override;

  KvCodec& codec() const override { return codec_; }
  int64_t tokens() const override { return held_.tokens(); }
  int64_t first_observed() const override { return prompt_tokens(); }
  absl::Status Observe(const WorkingKv& /*working*/,
                       const PromptRows& /*rows*/,
                       const KvQueries& /*queries*/) override {
    return absl::OkStatus();
  }
  absl::Status EncodeLayer(const WorkingKv& working, int32_t kv_layer) override;
  absl::Status AttendExtension(const WorkingKv& working,
                               const PromptRows& rows,
                               const KvQueries& queries) override;
  std::vector<std::span<const std::byte>> LayerPages(int32_t kv_layer) const override;
  std::string State() const override { return {}; }
  std::vector<std::span<std::byte>> Window() override;
  absl::Status Adopt(std::string_view state, int32_t layers) override;
  absl::StatusOr<std::vector<int32_t>> SentPages(std::string_view state,
                                                 int32_t layers) const override;
  void Trim() override {}
  void Shrink() override;
  // kUnimplemented for a sequence that was extended.
  absl::Status CopyTo(EncodedKv& other) const override;
  int64_t ResidentBytes() const override;
  int64_t ReservedBytes() const override;
  int64_t CacheBytes() const override { return static_cast<int64_t>(cache_begin_.back()); }
  AttentionCounters counters() const override { return counters_; }

  // EncodedFormat::Extend.
  bool Extend(int64_t prompt_tokens, int64_t max_tokens);
  // The sequence as the ops see it, its newest token at `position`.
  kernels::ShadowKvSequence AtStep(int32_t kv_layer, int32_t position);
  size_t workspace_bytes() const { return workspace_bytes_; }
  // The token at `position` was appended to a layer.
  void NoteAppended(int32_t position) { held_.Append(position); }
  // Codes the joint coefficients that are due once the token at `position` is in all layers of a
  // group; nothing for a layer that is not the last of one.
  absl::Status CodeJoint(int32_t kv_layer, int32_t position);
  // Adds what one attention call did.
  void Count(const kernels::ShadowKvCounters& counters);

 private:
  // Of the layer that needs most.
  size_t LargestWorkspace(int64_t tokens) const;
  void MoveTails(std::byte* target, TailMap tails);
  void CutRun(RunPool::Run& run, size_t bytes);
  absl::Status EncodePrompt(const WorkingKv& working, int32_t kv_layer);
  absl::Status EncodeJoint(const WorkingKv& working, const JointGroup& group);
  // Takes the extension's tokens into layers [layer_begin, layer_end).
  absl::Status AppendWorking(const WorkingKv& working, int32_t layer_begin, int32_t layer_end);
  absl::Status AppendWorkingToken(const WorkingKv& working, int32_t kv_layer, int64_t position);
  int64_t prompt_tokens() const { return map_.layout(0).prompt_tokens; }
  int64_t tokens_behind() const { return held_.tokens() - prompt_tokens(); }
  std::byte* prompt(int32_t kv_layer) const { return base_ + map_.prompt_begin(kv_layer); }
  std::byte* tail(size_t part) const { return tails_ + tail_map_.begins[part]; }
  absl::Status CheckStaticIds(int32_t kv_layer) const;
  absl::Status CheckClusterIds(int32_t kv_layer) const;

  ShadowKvCodec& codec_;
  const ShadowKvMap map_;
  int64_t max_tokens_;           // behind the prompt
  int64_t extension_begin_ = 0;  // tokens held when the newest extension began
  // By joint group: layers that EncodeLayer was called for since the prompt or extension began.
  std::vector<int32_t> encoded_layers_;
  TailMap tail_map_;
  // Where each layer's cache begins, and the end of the last.
  const std::vector<size_t> cache_begin_;
  RunPool::Run run_;
  RunPool::Run tail_run_;  // no units: the tails are in run_
  std::byte* const base_;
  std::byte* tails_;  // tail_map_
  size_t workspace_bytes_;
  kernels::Buffer cache_;  // [layers], made when the first token is decoded
  HeldTokens held_;
  AttentionCounters counters_;
};

}  // namespace baton::kv
