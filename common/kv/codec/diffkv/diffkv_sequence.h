// The KV of one sequence in format `diffkv`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/diffkv/diffkv_codec.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/held_tokens.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/kv_format/position_range.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kv {

// How many pages a sequence may come to need (DiffKV section 5.2): the prompt as if every token
// went to the high tier, one page more a head for the low tier, and as much again for what is
// generated. A running sequence therefore never finds the pool empty.
struct DiffKvPagePlan {
  int32_t layers = 0;
  int32_t prompt_pages_per_layer = 0;  // the window of a landing prompt
  int32_t growth_pages_per_layer = 0;

  int64_t prompt_pages() const { return int64_t{layers} * prompt_pages_per_layer; }
  int64_t pages() const {
    return int64_t{layers} * (prompt_pages_per_layer + growth_pages_per_layer);
  }
};

DiffKvPagePlan PlanDiffKvPages(const kernels::DiffKvGeometry& geometry,
                               int32_t layers,
                               int64_t prompt_tokens,
                               int64_t max_tokens);

// What the policy's grammar says about one request.
struct DiffKvSettings {
  kernels::DiffKvPolicy policy;  // without the ranges of a sequence
  int32_t sweep_every = 1;       // decode steps from one re-classification to the next
};

// Owns its pages: every id that the pool gave stays in `owned_` until Trim or the end, whether it
// is in a page table or not. Threads: encoded_kv.h.
class DiffKvSequence final : public EncodedKv {
 public:
  // `ids` are pages of the codec's pool, as many as the plan says.
  DiffKvSequence(DiffKvCodec& codec,
                 const DiffKvSettings& settings,
                 int64_t prompt_tokens,
                 int64_t max_tokens,
                 std::vector<PageId> ids);
  ~DiffKvSequence() override;

  KvCodec& codec() const override { return codec_; }
  int64_t tokens() const override { return held_.tokens(); }
  int64_t first_observed() const override;
  absl::Status Observe(const WorkingKv& working,
                       const PromptRows& rows,
                       const KvQueries& queries) override;
  absl::Status EncodeLayer(const WorkingKv& working, int32_t kv_layer) override;
  std::vector<std::span<const std::byte>> LayerPages(int32_t kv_layer) const override;
  std::string State() const override;
  std::vector<std::span<std::byte>> Window() override;
  absl::Status Adopt(std::string_view state, int32_t layers) override;
  absl::StatusOr<std::vector<int32_t>> SentPages(std::string_view state,
                                                 int32_t layers) const override;
  std::span<float> WindowScores(int32_t kv_layer) override;
  void Trim() override;
  absl::Status CopyTo(EncodedKv& other) const override;
  int64_t ResidentBytes() const override;
  int64_t ReservedBytes() const override;
  AttentionCounters counters() const override { return counters_; }

  kernels::DiffKvLayer layer(int32_t kv_layer);
  kernels::DiffKvLease& lease() { return lease_; }
  kernels::DiffKvPolicy policy() const;
  bool SweepsAt(int32_t position) const {
    return (position - prompt_tokens_) % settings_.sweep_every == 0;
  }
  // Of attention's last call: the mass that each stored token got, [kv_heads][probability_stride].
  float* probabilities() { return probabilities_.data(); }
  int64_t probability_stride() const { return prompt_tokens_ + max_tokens_; }
  // The token at `position` was appended to a layer.
  void NoteAppended(int32_t position) { held_.Append(position); }
  // Counts one query of every head of a layer.
  void CountAttention(int32_t kv_layer);
  // Tokens stored in a layer by head and tier, [kv_heads][kDiffKvTiers].
  std::span<const int32_t> token_counts(int32_t kv_layer) const;

 private:
  absl::Status ObserveAlone(const WorkingKv& working,
                            const PromptRows& rows,
                            const KvQueries& queries);
  absl::Status ObserveShared(const WorkingKv& working,
                             const PromptRows& rows,
                             const KvQueries& queries);
  kernels::AttentionProbabilitiesParams ProbabilitiesOf(const WorkingKv& working,
                                                        const PromptRows& rows,
                                                        const KvQueries& queries) const;
  absl::Status Accumulate(const PromptRows& rows,
                          const float* probabilities,
                          int64_t stride,
                          int32_t kv_layer);
  float* scores(int32_t kv_layer);
  int32_t PagesOf(std::span<const int32_t> counts) const;
  // Pages of a head's tier in order, from its page table.
  PageId PageAt(int32_t kv_layer, int32_t head, int32_t tier, int32_t index) const;
  std::vector<PageId> PagesInOrder(int32_t kv_layer) const;
  absl::StatusOr<std::vector<int32_t>> ReadState(std::string_view state, int32_t layers) const;
  void PointLease();

  DiffKvCodec& codec_;
  const DiffKvSettings settings_;
  std::vector<kernels::PositionRange> unobserved_;  // of the policy
  const int64_t prompt_tokens_;
  const int64_t max_tokens_;
  const DiffKvPagePlan plan_;
  const int32_t layers_;
  const int32_t kv_heads_;
  const int32_t columns_;
  std::vector<PageId> owned_;      // the first plan_.prompt_pages() are the window, layer by layer
  std::vector<PageId> lease_ids_;  // what lease_ points to
  kernels::DiffKvLease lease_;
  std::vector<int32_t> page_table_;    // [layers][kv_heads][columns]
  std::vector<int32_t> token_counts_;  // [layers][kv_heads][tiers]
  std::vector<float> probabilities_;
  HeldTokens held_;
  AttentionCounters counters_;
  // While the prompt is observed: score sums [layers][kv_heads][prompt_tokens], and the window's
  // probabilities [queries][kv_heads][prompt_tokens] of a cache that several layers read.
  std::vector<float> scores_;
  std::vector<float> shared_probabilities_;
  std::vector<kernels::DiffKvClass> classes_;
};

}  // namespace baton::kv
