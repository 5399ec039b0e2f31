// The KV of one sequence in format `diffkv`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/diffkv/coded_pages.h"
#include "common/kv/codec/diffkv/diffkv_codec.h"
#include "common/kv/codec/diffkv/diffkv_device_arrays.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/held_tokens.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/pool/page_copies.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/step_arrays.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/params.h"

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
  int32_t every = 1;             // DiffKvPolicy::every
};

// Owns its pages: every id that the pool gave stays in `owned_` until Trim, Shrink or the end,
// whether it is in a page table or not. Threads: encoded_kv.h.
//
// In an extension, tokens that are stored keep their tier and add the attention mass of its
// observed queries to their scores; its own tokens are scored by the same queries, and classified
// like those of a prompt of the new length. Every softmax is over both. Ages count observed queries
// (DiffKvAge); those of the first prompt before its last 64 never count, under score=all either.
//
// On a device the arrays that ops read and write are there, and the host follows them from afar: it
// reads token counts and what is left of the lease when the prompt is encoded (Settle), which makes
// Trim exact, and every kFetchedTokens tokens after that. In between TierTokens, ResidentBytes and
// attended_tokens are behind. A prompt is scored and coded on a side queue, one for all of its
// layers: they take pages from one lease in turn, so that the host knows the pages of each by their
// counts. Pages of a prompt that lands get there by others (StagedWindow); the tables follow with
// the first step. What was promised for generation stays so until a sequence that is kept is
// extended: the engine thread doesn't know what of it is used. An extension has arrays of its own,
// which the first step that refers to it fills from those before.
class DiffKvSequence final : public EncodedKv {
 public:
  // Generated tokens after which the host reads counts from a device again: about a page of a head.
  // A read is a copy that the host waits for.
  static constexpr int64_t kFetchedTokens = 32;

  // `ids` are pages of the codec's pool, as many as the plan says. `device`: on a device the arrays
  // for them; null on the host.
  DiffKvSequence(DiffKvCodec& codec,
                 const DiffKvSettings& settings,
                 int64_t prompt_tokens,
                 int64_t max_tokens,
                 std::vector<PageId> ids,
                 std::unique_ptr<DiffKvDeviceArrays> device);
  ~DiffKvSequence() override;

  KvCodec& codec() const override { return codec_; }
  int64_t tokens() const override { return held_.tokens(); }
  absl::Status PrepareStep() override;
  int64_t first_observed() const override;
  absl::Status Observe(const WorkingKv& working,
                       const PromptRows& rows,
                       const KvQueries& queries) override;
  absl::Status EncodeLayer(const WorkingKv& working, int32_t kv_layer) override;
  absl::Status Settle() override;
  absl::Status PrepareExtension(const WorkingKv& working,
                                const PromptRows& rows,
                                kernels::StepArrays& arrays) override;
  absl::Status AttendExtension(const WorkingKv& working,
                               const PromptRows& rows,
                               const KvQueries& queries) override;
  EncodedLayer LayerPages(int32_t kv_layer) const override;
  absl::StatusOr<CodedLayer> FollowCoding(kernels::CopyQueue& copies, int32_t kv_layer) override;
  std::string State() const override;
  std::vector<std::span<std::byte>> Window(int32_t kv_layer, int32_t pages) override;
  absl::Status Adopt(std::string_view state, int32_t layers) override;
  absl::StatusOr<std::vector<int32_t>> SentPages(std::string_view state,
                                                 int32_t layers) const override;
  void PlaceWindowScores(int32_t layer_begin, float* scores) override;
  absl::Status LeaveLayer(int32_t kv_layer) override;
  void Trim() override;
  void Shrink() override;
  // kUnimplemented for a sequence that was extended.
  absl::Status CopyTo(EncodedKv& other, std::vector<PageCopies>& copies) const override;
  int64_t ResidentBytes() const override;
  int64_t ReservedBytes() const override;
  AttentionCounters counters() const override { return counters_; }
  std::span<const int32_t> TierTokens(int32_t kv_layer) const override;

  // EncodedFormat::Extend.
  bool Extend(int64_t prompt_tokens, int64_t max_tokens);

  // Where ops find the parts of the sequence.
  kernels::DiffKvLayer layer(int32_t kv_layer);
  kernels::DiffKvLease* op_lease() { return device_ == nullptr ? &lease_ : device_->lease(); }
  kernels::DiffKvAction* actions(int32_t kv_layer) {
    return (device_ == nullptr ? actions_.data() : device_->actions()) +
           int64_t{kv_layer} * kv_heads_;
  }
  // As the host knows it.
  const kernels::DiffKvLease& lease() const { return lease_; }
  // The policy of a layer: with the thresholds that its floor leaves.
  kernels::DiffKvPolicy policy(int32_t kv_layer) const;
  // The generated token at `position` looks for a token to move down, and its query scores.
  bool ObservesAt(int32_t position) const { return (position + 1) % settings_.every == 0; }
  // Of attention's last call: the mass that each stored token got, [kv_heads][probability_stride].
  float* probabilities() {
    return device_ == nullptr ? probabilities_.data() : device_->probabilities();
  }
  int64_t probability_stride() const { return prompt_tokens_ + max_tokens_; }
  // The token at `position` was appended to a layer.
  void NoteAppended(int32_t position) { held_.Append(position); }
  // Counts one query of every head of a layer.
  void CountAttention(int32_t kv_layer);

 private:
  // Scores the tokens in working pages. `lse`: [rows][heads], of attention over all keys; null when
  // all keys are in the working pages.
  absl::Status ObserveNew(const WorkingKv& working,
                          const PromptRows& rows,
                          const KvQueries& queries,
                          const float* lse);
  absl::Status ObserveAlone(const WorkingKv& working,
                            const PromptRows& rows,
                            const KvQueries& queries,
                            const float* lse);
  absl::Status ObserveShared(const WorkingKv& working,
                             const PromptRows& rows,
                             const KvQueries& queries,
                             const float* lse);
  kernels::AttentionProbabilitiesParams ProbabilitiesOf(const WorkingKv& working,
                                                        const PromptRows& rows,
                                                        const KvQueries& queries,
                                                        const float* lse) const;
  // Room for the probabilities of rows that are all that a layer of its own is to observe, on a
  // device: those are observed beside the forward pass. Null: they are not, or there is no room.
  float* ProbabilitiesAside(const PromptRows& rows);
  absl::Status Accumulate(const kernels::ExecContext& exec,
                          const PromptRows& rows,
                          const float* probabilities,
                          int64_t stride,
                          int32_t kv_layer);
  // Rows of an extension in a tile, as ops take them: over the working keys, [layers]; over the
  // stored tokens, [layers][rows of the tile], those first that score nothing; the others where
  // layers share what they read, [layers][rows that score].
  struct ExtensionTile {
    PromptRows rows;
    int32_t silent = 0;  // rows that score nothing
    std::vector<kernels::SequenceRows> working;
    std::vector<kernels::DiffKvAttentionRow> stored;
    std::vector<kernels::DiffKvAttentionRow> shared;
    const kernels::SequenceRows* op_working = nullptr;
    const kernels::DiffKvAttentionRow* op_stored = nullptr;
    const kernels::DiffKvAttentionRow* op_shared = nullptr;
  };
  // `stored_probabilities`: StoredProbabilities() where layers share what they read, else null.
  void AddLayer(const PromptRows& rows,
                int32_t kv_layer,
                float* stored_probabilities,
                ExtensionTile& tile);
  // Merges attention over the stored tokens into the rows' results.
  absl::Status AttendStored(const kernels::DiffKvAttentionRow* op_rows,
                            int64_t count,
                            const KvQueries& queries,
                            bool scored);
  absl::Status AttendSilently(const ExtensionTile& tile, const KvQueries& queries);
  absl::Status AttendObserved(const ExtensionTile& tile, const KvQueries& queries);
  // Log-sum-exps of the extension's row at `position`, [heads].
  float* RowLse(int64_t position);
  // Of the observed rows' stored tokens, for layers that share a cache.
  float* StoredProbabilities();
  // Scratch of one row of attention over stored tokens.
  int64_t RowFloats(int32_t kv_layer) const;
  // Queries of one attention call over stored tokens that score nothing.
  int32_t SilentRowsAtOnce(int32_t kv_layer) const;
  // Tokens stored in the fullest head of a layer; at least 1.
  int64_t StoredTokens(int32_t kv_layer) const;
  // Tokens of the prompt, or of the extension, that are computed here.
  int64_t new_tokens() const { return prompt_tokens_ - extension_begin_; }
  float* scores(int32_t kv_layer);
  // The next layer overwrites the queries that a side queue may still read.
  absl::Status AwaitObservation();
  kernels::DiffKvClass* classes();
  absl::StatusOr<float*> SharedProbabilities(size_t floats);
  // On a device: reads what the host follows.
  absl::Status Fetch();
  void ForgetPrompt();
  // Takes or gives back pages until `count` are in no page table; false, and nothing changed, when
  // too few are free.
  bool SetUnused(int64_t count);
  // On a device: arrays for an extension, and pages; false, and nothing changed, when there is too
  // little of either.
  bool TakeForExtension(const DiffKvPagePlan& plan, int64_t prompt_tokens, int64_t max_tokens);
  // On a device, in the extension's first step: fills its arrays from those before.
  absl::Status TakeOver();
  void GiveBackUnused(int64_t count);
  void SetColumns(int32_t columns);
  // From the end of the prompt on.
  void AddUnobservedGenerated();
  // Pages of a head's tier in order, from its page table.
  PageId PageAt(int32_t kv_layer, int32_t head, int32_t tier, int32_t index) const;
  std::vector<PageId> PagesInOrder(int32_t kv_layer) const;
  // On a device: the same, from the lease.
  std::vector<PageId> PagesFromLease(int32_t kv_layer) const;
  // The pages of a layer's part of the window.
  std::span<const PageId> WindowIds(int32_t kv_layer) const;
  // On the host: gives a landed layer the first pages of its window.
  absl::Status AssignLanded(int32_t kv_layer);
  // On a device: gives all landed layers pages from the lease.
  absl::Status AssignLandedPages();
  absl::StatusOr<std::vector<int32_t>> ReadState(std::string_view state, int32_t layers) const;
  absl::Status CheckPages(std::span<const int32_t> counts) const;
  absl::Status CheckFloors(std::span<const int32_t> counts, int32_t layers) const;
  KvFloor floor(int32_t kv_layer) const;
  void PointLease();

  DiffKvCodec& codec_;
  const DiffKvSettings settings_;
  std::vector<kernels::UnobservedRange> unobserved_;  // of the policy
  int64_t prompt_tokens_;
  int64_t max_tokens_;
  int64_t extension_begin_ = 0;  // tokens held when the newest extension began
  DiffKvPagePlan plan_;          // of the prompt or the newest extension
  const int32_t layers_;
  const int32_t kv_heads_;
  int32_t columns_;
  // Of a prompt that lands, the first plan_.prompt_pages() are the window, layer by layer.
  std::vector<PageId> owned_;
  std::vector<PageId> lease_ids_;  // what lease_ points to
  kernels::DiffKvLease lease_;
  std::vector<int32_t> token_counts_;  // [layers][kv_heads][tiers]
  // On the host:
  std::vector<int32_t> page_table_;  // [layers][kv_heads][columns]
  std::vector<kernels::DiffKvAction> actions_;
  std::vector<float> probabilities_;
  // On a device: null elsewhere.
  std::unique_ptr<DiffKvDeviceArrays> device_;
  std::unique_ptr<DiffKvDeviceArrays> before_extension_;  // until TakeOver
  const int32_t encode_turn_;                             // DiffKvCodec::ExecToEncode
  bool observing_aside_ = false;  // queries of the layer that runs are read on the side queue
  bool filled_ = false;           // device_ is
  bool landed_ = false;           // on a device: the tokens are another worker's
  std::vector<int32_t> coded_;    // on a device: layers, as they take pages from the lease
  std::shared_ptr<DiffKvCodedPages> coded_pages_;  // null until somebody follows the coding
  bool lease_limited_ = true;                      // device_ knows of lease_.count
  int64_t fetched_tokens_ = 0;
  HeldTokens held_;
  AttentionCounters counters_;
  // While the prompt is observed, on the host: score sums [layers][kv_heads][new_tokens], and, of a
  // cache that several layers read, the observed queries' probabilities
  // [queries][kv_heads][new_tokens] and [queries][kv_heads][stored tokens].
  std::vector<float> scores_;
  // Of layers from placed_layer_begin_ on score sums are here, if anywhere; borrowed until the
  // prompt is encoded.
  float* placed_scores_ = nullptr;
  int32_t placed_layer_begin_ = 0;
  std::vector<float> shared_probabilities_;
  std::vector<float> stored_probabilities_;
  std::vector<float> row_lses_;                 // of an extension, on the host
  std::vector<ExtensionTile> extension_tiles_;  // of the running step
  // Token counts when the step of an extension began, and where ops read them: [layers][kv_heads]
  // [tiers].
  std::vector<int32_t> held_counts_;
  const int32_t* op_held_counts_ = nullptr;
  std::vector<kernels::DiffKvClass> classes_;
};

}  // namespace baton::kv
