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
#include "common/kv/pool/run_pool.h"
#include "kernels/core/buffer.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

// One run of the pool: the prompt sections of all layers, then their tails. Threads: encoded_kv.h.
class ShadowKvSequence final : public EncodedKv {
 public:
  // Bytes of the run that such a sequence needs.
  static int64_t RunBytes(const kernels::ShadowKvConfig& config,
                          int32_t layers,
                          int64_t prompt_tokens,
                          int64_t max_tokens);

  // Takes over `run`, of RunBytes.
  ShadowKvSequence(ShadowKvCodec& codec,
                   const kernels::ShadowKvConfig& config,
                   int64_t prompt_tokens,
                   int64_t max_tokens,
                   RunPool::Run run);
  ~ShadowKvSequence() override;

  KvCodec& codec() const override { return codec_; }
  int64_t tokens() const override { return held_.tokens(); }
  int64_t first_observed() const override { return layout_.prompt_tokens; }
  absl::Status Observe(const WorkingKv& /*working*/,
                       const PromptRows& /*rows*/,
                       const KvQueries& /*queries*/) override {
    return absl::OkStatus();
  }
  absl::Status EncodeLayer(const WorkingKv& working, int32_t kv_layer) override;
  std::vector<std::span<const std::byte>> LayerPages(int32_t kv_layer) const override;
  std::string State() const override { return {}; }
  std::vector<std::span<std::byte>> Window() override;
  absl::Status Adopt(std::string_view state, int32_t layers) override;
  absl::StatusOr<std::vector<int32_t>> SentPages(std::string_view state,
                                                 int32_t layers) const override;
  void Trim() override {}
  absl::Status CopyTo(EncodedKv& other) const override;
  int64_t ResidentBytes() const override;
  int64_t ReservedBytes() const override;
  int64_t CacheBytes() const override { return layers_ * static_cast<int64_t>(cache_bytes_); }
  AttentionCounters counters() const override { return counters_; }

  // The sequence as the ops see it, its newest token at `position`.
  kernels::ShadowKvSequence AtStep(int32_t kv_layer, int32_t position);
  size_t workspace_bytes() const { return workspace_bytes_; }
  // The token at `position` was appended to a layer.
  void NoteAppended(int32_t position) { held_.Append(position); }
  // Adds what one attention call did.
  void Count(const kernels::ShadowKvCounters& counters);

 private:
  std::byte* prompt(int32_t kv_layer) const;
  std::byte* tail(int32_t kv_layer) const;
  absl::Status CheckStaticIds(int32_t kv_layer) const;

  ShadowKvCodec& codec_;
  const kernels::ShadowKvPromptLayout layout_;
  const int64_t max_tokens_;
  const kernels::ShadowKvTailLayout tail_layout_;
  const size_t tail_bytes_;
  const size_t cache_bytes_;
  const int32_t layers_;
  const RunPool::Run run_;
  std::byte* const base_;
  const size_t workspace_bytes_;
  kernels::Buffer cache_;  // [layers], made when the first token is decoded
  HeldTokens held_;
  AttentionCounters counters_;
};

}  // namespace baton::kv
