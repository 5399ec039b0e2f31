// The KV of one sequence in format `fp8`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/block_cache.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/fp8/fp8_codec.h"
#include "common/kv/codec/held_tokens.h"
#include "common/kv/codec/step_kv.h"
#include "common/kv/pool/page_copies.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/params.h"

namespace baton::kv {

// Pages for prompt and generated tokens, taken at once, and again for each extension. On a device
// ops read the page tables from a block of its memory, where the first step that refers to them
// brings them. Threads: encoded_kv.h.
class Fp8Sequence final : public EncodedKv {
 public:
  // `ids`: for each layer, pages for prompt_tokens + max_tokens. `table`: on a device room for
  // them; empty on the host.
  Fp8Sequence(Fp8Codec& codec,
              int64_t prompt_tokens,
              int64_t max_tokens,
              std::vector<PageId> ids,
              BlockCache::Block table);
  ~Fp8Sequence() override;

  KvCodec& codec() const override { return codec_; }
  int64_t tokens() const override { return held_.tokens(); }
  absl::Status PrepareStep() override;
  int64_t first_observed() const override { return prompt_tokens_; }
  absl::Status Observe(const WorkingKv& /*working*/,
                       const PromptRows& /*rows*/,
                       const KvQueries& /*queries*/) override {
    return absl::OkStatus();
  }
  absl::Status EncodeLayer(const WorkingKv& working, int32_t kv_layer) override;
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
  absl::StatusOr<std::vector<int32_t>> SentPages(std::string_view state,
                                                 int32_t layers) const override;
  void Trim() override {}
  void Shrink() override;
  // kUnimplemented for a sequence that was extended.
  absl::Status CopyTo(EncodedKv& other, std::vector<PageCopies>& copies) const override;
  int64_t ResidentBytes() const override;
  int64_t ReservedBytes() const override;
  AttentionCounters counters() const override { return counters_; }

  // EncodedFormat::Extend.
  bool Extend(int64_t prompt_tokens, int64_t max_tokens);
  const PageId* page_table(int32_t kv_layer) const {
    return ids_.data() + static_cast<ptrdiff_t>(kv_layer) * pages_per_layer_;
  }
  // The same where ops read it.
  const PageId* op_page_table(int32_t kv_layer) const {
    return device_table_.empty()
               ? page_table(kv_layer)
               : device_table_.as<PageId>() + static_cast<ptrdiff_t>(kv_layer) * pages_per_layer_;
  }
  // The token at `position` was appended to a layer.
  void NoteAppended(int32_t position) { held_.Append(position); }
  void CountAttention(int32_t position);

 private:
  // Rows of an extension in a tile, as ops take them: over the exact keys, over the coded ones.
  struct ExtensionRows {
    PromptRows tile_rows;
    std::vector<kernels::SequenceRows> rows;  // [2][layers]
    const kernels::SequenceRows* op_rows = nullptr;
  };

  // Room on the device for the tables of so many pages a layer. An empty block on the host.
  absl::StatusOr<BlockCache::Block> TableBlock(int32_t pages) const;
  // Takes or gives back pages at the end of every layer; false, and nothing changed, when too few
  // are free.
  bool SetPagesPerLayer(int32_t pages);
  std::vector<std::span<std::byte>> FirstPages(int32_t kv_layer, int32_t pages) const;
  int32_t prompt_pages() const { return codec_.layout().pages_for(prompt_tokens_); }

  Fp8Codec& codec_;
  int64_t prompt_tokens_;
  int64_t extension_begin_ = 0;  // tokens held when the newest extension began
  const int32_t layers_;
  int32_t pages_per_layer_;
  std::vector<PageId> ids_;
  BlockCache::Block device_table_;             // of ids_; empty on the host
  bool uploaded_ = false;                      // ids_ are in device_table_
  std::vector<ExtensionRows> extension_rows_;  // of the running step
  HeldTokens held_;
  AttentionCounters counters_;
};

}  // namespace baton::kv
