#include "common/kv/codec/fp8/fp8_sequence.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/block_cache.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/fp8/fp8_codec.h"
#include "common/kv/codec/step_kv.h"
#include "common/kv/codec/working_attention.h"
#include "common/kv/pool/page_copies.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/copy_queue.h"
#include "kernels/core/memory.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"

namespace baton::kv {

Fp8Sequence::Fp8Sequence(Fp8Codec& codec,
                         int64_t prompt_tokens,
                         int64_t max_tokens,
                         std::vector<PageId> ids,
                         BlockCache::Block table)
    : codec_(codec),
      prompt_tokens_(prompt_tokens),
      layers_(codec.context().dimensions.layers),
      pages_per_layer_(codec.layout().pages_for(prompt_tokens + max_tokens)),
      ids_(std::move(ids)),
      device_table_(std::move(table)),
      held_(layers_, prompt_tokens) {
  BATON_CHECK(static_cast<int64_t>(ids_.size()) == int64_t{layers_} * pages_per_layer_);
}

Fp8Sequence::~Fp8Sequence() { codec_.pool().ReleaseAll(ids_); }

absl::Status Fp8Sequence::PrepareStep() {
  extension_rows_.clear();
  if (device_table_.empty() || uploaded_) {
    return absl::OkStatus();
  }
  BATON_RETURN_IF_ERROR(codec_.context().exec.memory->Upload(
      device_table_.data(), ids_.data(), ids_.size() * sizeof(PageId)));
  uploaded_ = true;
  return absl::OkStatus();
}

absl::StatusOr<BlockCache::Block> Fp8Sequence::TableBlock(int32_t pages) const {
  if (device_table_.empty()) {
    return BlockCache::Block();
  }
  return codec_.blocks().Take(static_cast<size_t>(layers_) * static_cast<size_t>(pages) *
                              sizeof(PageId));
}

bool Fp8Sequence::SetPagesPerLayer(int32_t pages) {
  std::vector<PageId> more;
  if (pages > pages_per_layer_) {
    absl::StatusOr<BlockCache::Block> table = TableBlock(pages);
    if (!table.ok()) {
      return false;
    }
    auto taken = codec_.pool().Allocate(int64_t{layers_} * (pages - pages_per_layer_));
    if (!taken.has_value()) {
      return false;
    }
    more = *std::move(taken);
    device_table_ = *std::move(table);
  }
  std::vector<PageId> ids;
  auto next = more.begin();
  for (int32_t kv_layer = 0; kv_layer < layers_; ++kv_layer) {
    const PageId* held = page_table(kv_layer);
    const int32_t kept = std::min(pages, pages_per_layer_);
    ids.insert(ids.end(), held, held + kept);
    ids.insert(ids.end(), next, next + (pages - kept));
    next += pages - kept;
    codec_.pool().ReleaseAll({held + kept, static_cast<size_t>(pages_per_layer_ - kept)});
  }
  ids_ = std::move(ids);
  pages_per_layer_ = pages;
  uploaded_ = false;
  return true;
}

bool Fp8Sequence::Extend(int64_t prompt_tokens, int64_t max_tokens) {
  BATON_CHECK(prompt_tokens > held_.tokens());
  if (!SetPagesPerLayer(codec_.layout().pages_for(prompt_tokens + max_tokens))) {
    return false;
  }
  extension_begin_ = held_.tokens();
  prompt_tokens_ = prompt_tokens;
  held_.Await(prompt_tokens);
  return true;
}

void Fp8Sequence::Shrink() {
  const bool fewer = SetPagesPerLayer(codec_.layout().pages_for(held_.tokens()));
  BATON_CHECK(fewer);
}

absl::Status Fp8Sequence::PrepareExtension(const WorkingKv& working,
                                           const PromptRows& rows,
                                           kernels::StepArrays& arrays) {
  ExtensionRows& extension = extension_rows_.emplace_back();
  extension.tile_rows = rows;
  extension.rows = WorkingRows(working, rows, extension_begin_);
  const auto begin = static_cast<int32_t>(extension_begin_);
  for (int32_t kv_layer = 0; kv_layer < layers_; ++kv_layer) {
    extension.rows.push_back(
        {.row_count = rows.row_count, .page_table = op_page_table(kv_layer), .key_end = begin});
  }
  extension.op_rows = arrays.Add(extension.rows);
  return absl::OkStatus();
}

// The exact keys first: the quantized ones before them are merged in. The page in which the
// extension begins is in both places, its tokens in one.
absl::Status Fp8Sequence::AttendExtension(const WorkingKv& working,
                                          const PromptRows& rows,
                                          const KvQueries& queries) {
  const auto extension = std::find_if(
      extension_rows_.begin(), extension_rows_.end(), [&](const ExtensionRows& candidate) {
        return candidate.tile_rows.Same(rows);
      });
  BATON_CHECK(extension != extension_rows_.end() && queries.lse != nullptr);
  for (int32_t row = 0; row < rows.row_count; ++row) {
    CountAttention(rows.positions[row]);
  }
  float* const lse = queries.lse + int64_t{rows.row_begin} * queries.heads;
  const CodecContext& context = codec_.context();
  const kernels::SequenceRows* const op_rows = extension->op_rows + queries.kv_layer;
  BATON_RETURN_IF_ERROR(AttendDenseKeys(context, working.pages, rows, queries, op_rows, lse));
  return AttendDenseKeys(
      context, codec_.pages(), rows, queries, op_rows + layers_, lse, /*merge=*/true);
}

absl::Status Fp8Sequence::EncodeLayer(const WorkingKv& working, int32_t kv_layer) {
  BATON_RETURN_IF_ERROR(codec_.context().ops->fp8_encode(
      codec_.context().exec,
      {.source = working.pages,
       .source_table = working.table.data + static_cast<ptrdiff_t>(kv_layer) * working.table.stride,
       .first_token = extension_begin_,
       .tokens = prompt_tokens_,
       .page_table = op_page_table(kv_layer),
       .pages = codec_.pages()}));
  held_.TakeLayers(1);
  return absl::OkStatus();
}

std::vector<std::span<std::byte>> Fp8Sequence::FirstPages(int32_t kv_layer, int32_t pages) const {
  return codec_.pool().Pieces({page_table(kv_layer), static_cast<size_t>(pages)},
                              codec_.layout().page_bytes());
}

EncodedLayer Fp8Sequence::LayerPages(int32_t kv_layer) const {
  const auto pieces = FirstPages(kv_layer, prompt_pages());
  return {.pages = prompt_pages(), .memory = {pieces.begin(), pieces.end()}};
}

absl::StatusOr<CodedLayer> Fp8Sequence::FollowCoding(kernels::CopyQueue& copies, int32_t kv_layer) {
  BATON_RETURN_IF_ERROR(copies.Follow(codec_.context().exec));
  return [layer = LayerPages(kv_layer)] { return layer; };
}

std::vector<std::span<std::byte>> Fp8Sequence::Window(int32_t kv_layer, int32_t pages) {
  return FirstPages(kv_layer, pages);
}

absl::Status Fp8Sequence::Adopt(std::string_view state, int32_t layers) {
  BATON_RETURN_IF_ERROR(SentPages(state, layers).status());
  held_.TakeLayers(layers);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Fp8Sequence::SentPages(std::string_view state,
                                                            int32_t layers) const {
  if (!state.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fp8 has no state beside its pages; ", state.size(), " bytes came"));
  }
  return std::vector<int32_t>(static_cast<size_t>(layers), prompt_pages());
}

absl::Status Fp8Sequence::CopyTo(EncodedKv& other, std::vector<PageCopies>& copies) const {
  if (extension_begin_ > 0) {
    return absl::UnimplementedError("fp8: a sequence that was extended can't be copied");
  }
  auto& target = static_cast<Fp8Sequence&>(other);
  target.held_ = held_;
  PageCopies& pages = copies.emplace_back(codec_.pool().base(), codec_.pool().stride_bytes());
  const auto count = static_cast<size_t>(prompt_pages());
  for (int32_t kv_layer = 0; kv_layer < layers_; ++kv_layer) {
    pages.Add({page_table(kv_layer), count}, {target.page_table(kv_layer), count});
  }
  return absl::OkStatus();
}

int64_t Fp8Sequence::ResidentBytes() const {
  return int64_t{layers_} * codec_.layout().pages_for(held_.tokens()) *
         static_cast<int64_t>(codec_.layout().page_bytes() + sizeof(PageId));
}

int64_t Fp8Sequence::ReservedBytes() const {
  return static_cast<int64_t>(ids_.size() * codec_.layout().stride_bytes());
}

void Fp8Sequence::CountAttention(int32_t position) {
  const int64_t kv_heads = codec_.layout().kv_heads;
  counters_.heads += kv_heads;
  counters_.attended_tokens += kv_heads * (int64_t{position} + 1);
}

}  // namespace baton::kv
