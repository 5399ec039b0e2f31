// A sequence that is kept and goes on with more prompt tokens.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/shadowkv/shadowkv_call.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/codec/shadowkv/shadowkv_device_arrays.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/codec/shadowkv/shadowkv_sequence.h"
#include "common/kv/codec/step_kv.h"
#include "common/kv/codec/working_attention.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/core/memory.h"
#include "kernels/core/step_arrays.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {
namespace {

// Bounds what selection writes for rows that it takes at once: 16 MiB.
constexpr int64_t kSelectionElements = int64_t{4} << 20;

int64_t RowsAtOnce(const ShadowKvCallSizes& sizes, int64_t heads) {
  const int64_t of_row = sizes.chunk_ids(1) + sizes.cluster_logits(1, heads);
  return std::max<int64_t>(1, kSelectionElements / std::max<int64_t>(1, of_row));
}

}  // namespace

bool ShadowKvSequence::Extend(int64_t prompt_tokens, int64_t max_tokens) {
  BATON_CHECK(prompt_tokens > held_.tokens());
  const int64_t behind = prompt_tokens + max_tokens - this->prompt_tokens();
  TailMap tails = map_.Tails(behind);
  const std::optional<RunPool::Run> run = memory_->TakeFor(tails);
  if (!run.has_value()) {
    return false;
  }
  if (values_ != nullptr) {
    TailMap value_tails = map_.ValueTails(behind);
    const std::optional<RunPool::Run> value_run = values_->TakeFor(value_tails);
    if (!value_run.has_value()) {
      memory_->GiveBack(*run);
      return false;
    }
    values_->Grow(*value_run, std::move(value_tails));
  }
  memory_->Grow(*run, std::move(tails));
  max_tokens_ = behind;
  extension_begin_ = held_.tokens();
  std::ranges::fill(encoded_layers_, 0);
  held_.Await(prompt_tokens);
  workspace_bytes_ = codec_.WorkspaceBytes(map_, prompt_tokens + max_tokens);
  return true;
}

void ShadowKvSequence::Shrink() {
  Trim();
  cache_ = {};
  cache_made_ = false;
  if (tokens_behind() >= max_tokens_) {
    return;
  }
  max_tokens_ = tokens_behind();
  memory_->Shrink(map_.Tails(max_tokens_));
  if (values_ != nullptr) {
    values_->Shrink(map_.ValueTails(max_tokens_));
  }
}

absl::Status ShadowKvSequence::AppendWorkingTokens(const WorkingKv& working,
                                                   int32_t kv_layer,
                                                   int64_t first,
                                                   int64_t end) {
  std::vector<kernels::ShadowKvSequence> appended;
  for (int64_t position = first; position < end; ++position) {
    appended.push_back(AtStep(kv_layer, static_cast<int32_t>(position)));
    appended.back().row = static_cast<int32_t>(position - first);
  }
  const kernels::ShadowKvSequence* op_appended = appended.data();
  if (!on_host()) {
    BATON_ASSIGN_OR_RETURN(op_appended,
                           device_->UploadAppended(*codec_.context().exec.memory, appended));
  }
  BATON_ASSIGN_OR_RETURN(const KvEntries entries,
                         codec_.working_reader().Read(working, kv_layer, first, end - first));
  return codec_.Append(entries, op_appended, end - first, workspace_bytes_);
}

absl::Status ShadowKvSequence::CodeJoint(int32_t kv_layer, int32_t position) {
  const int32_t index = map_.group_of(kv_layer);
  if (index < 0) {
    return absl::OkStatus();
  }
  const std::optional<ShadowKvJointBlock> due =
      JointBlockDue(map_.groups()[static_cast<size_t>(index)], position);
  if (!due.has_value()) {
    return absl::OkStatus();
  }
  const kernels::ShadowKvSequence* op_layers = due->layers.data();
  const float* const* op_key_biases = due->key_biases.data();
  if (!on_host()) {
    kernels::MemorySpace& space = *codec_.context().exec.memory;
    BATON_ASSIGN_OR_RETURN(op_layers, device_->UploadAppended(space, due->layers));
    BATON_ASSIGN_OR_RETURN(op_key_biases, device_->UploadKeyBiases(space, due->key_biases));
  }
  return codec_.CodeJoint(op_layers, op_key_biases, due->layers.size(), workspace_bytes_);
}

// Like tokens that were generated. Layers that share coefficients take in the same tokens together:
// exact keys of all of them are needed where a block is coded.
absl::Status ShadowKvSequence::AppendWorking(const WorkingKv& working,
                                             int32_t layer_begin,
                                             int32_t layer_end) {
  const kernels::ShadowKvTailLayout tail(map_.layout(layer_begin), max_tokens_);
  for (int64_t first = extension_begin_; first < held_.awaited();) {
    const int64_t end = tail.EndOfAppend(first, held_.awaited());
    for (int32_t kv_layer = layer_begin; kv_layer < layer_end; ++kv_layer) {
      BATON_RETURN_IF_ERROR(AppendWorkingTokens(working, kv_layer, first, end));
    }
    BATON_RETURN_IF_ERROR(CodeJoint(layer_begin, static_cast<int32_t>(end - 1)));
    first = end;
  }
  return absl::OkStatus();
}

void ShadowKvSequence::AddLayer(const PromptRows& rows, int32_t kv_layer, ExtensionTile& tile) {
  const auto newest = static_cast<int32_t>(extension_begin_ - 1);
  kernels::ShadowKvSequence sequence = AtStep(kv_layer, newest);
  if (!on_host()) {
    sequence.cache = nullptr;
    sequence.counters = nullptr;
  }
  tile.sizes.emplace_back().Add(map_.layout(kv_layer), newest, sequence.cache != nullptr);
  for (int32_t row = 0; row < rows.row_count; ++row) {
    sequence.row = rows.row_begin + row;
    tile.stored.push_back(sequence);
  }
}

absl::Status ShadowKvSequence::PrepareExtension(const WorkingKv& working,
                                                const PromptRows& rows,
                                                kernels::StepArrays& arrays) {
  if (on_host()) {
    BATON_RETURN_IF_ERROR(MakeCache());
  }
  ExtensionTile& tile = extension_tiles_.emplace_back();
  tile.rows = rows;
  tile.working = WorkingRows(working, rows, extension_begin_);
  for (int32_t kv_layer = 0; kv_layer < map_.layers(); ++kv_layer) {
    AddLayer(rows, kv_layer, tile);
    const ShadowKvCallSizes& sizes = tile.sizes.back();
    BATON_RETURN_IF_ERROR(codec_.PrepareToExtend(
        working.pages.layout,
        sizes,
        std::min<int64_t>(rows.row_count, RowsAtOnce(sizes, codec_.context().heads))));
  }
  tile.op_working = arrays.Add(tile.working);
  tile.op_stored = arrays.Add(tile.stored);
  return absl::OkStatus();
}

absl::Status ShadowKvSequence::AttendExtension(const WorkingKv& working,
                                               const PromptRows& rows,
                                               const KvQueries& queries) {
  const auto tile = std::ranges::find_if(
      extension_tiles_, [&](const ExtensionTile& candidate) { return candidate.rows.Same(rows); });
  BATON_CHECK(tile != extension_tiles_.end() && queries.lse != nullptr);
  BATON_RETURN_IF_ERROR(AttendDenseKeys(codec_.context(),
                                        working.pages,
                                        rows,
                                        queries,
                                        tile->op_working + queries.kv_layer,
                                        queries.lse + int64_t{rows.row_begin} * queries.heads));
  CountExtension(rows, queries.kv_layer);
  return AttendStored(*tile, queries);
}

absl::Status ShadowKvSequence::AttendStored(const ExtensionTile& tile, const KvQueries& queries) {
  const int64_t rows = tile.rows.row_count;
  ShadowKvCall call = {.sequences = tile.op_stored + queries.kv_layer * rows,
                       .sizes = tile.sizes[static_cast<size_t>(queries.kv_layer)],
                       .workspace_bytes = workspace_bytes_};
  const int64_t at_once = RowsAtOnce(call.sizes, queries.heads);
  for (int64_t begin = 0; begin < rows; begin += at_once) {
    call.count = std::min(at_once, rows - begin);
    BATON_ASSIGN_OR_RETURN(const ShadowKvSelection selection, codec_.Select(call, queries));
    BATON_RETURN_IF_ERROR(AttendSelected(call, queries, selection));
    call.sequences += call.count;
  }
  return absl::OkStatus();
}

// A device takes all rows together and reconstructs what each of them selects. The host takes one
// after another, so that a row finds in the cache what those before it have reconstructed.
absl::Status ShadowKvSequence::AttendSelected(ShadowKvCall call,
                                              const KvQueries& queries,
                                              ShadowKvSelection selection) {
  if (!on_host()) {
    return codec_.Attend(call, queries, selection, queries.lse);
  }
  for (int64_t left = std::exchange(call.count, 1); left > 0; --left) {
    BATON_RETURN_IF_ERROR(codec_.Attend(call, queries, selection, queries.lse));
    ++call.sequences;
    selection.chunk_ids += call.sizes.chunk_ids(1);
    if (selection.cluster_logits != nullptr) {
      selection.cluster_logits += call.sizes.cluster_logits(1, queries.heads);
    }
  }
  return absl::OkStatus();
}

// What an op has attended it counts on the host, for rows with counters.
void ShadowKvSequence::CountExtension(const PromptRows& rows, int32_t kv_layer) {
  const kernels::ShadowKvPromptLayout& layout = map_.layout(kv_layer);
  const int64_t kv_heads = layout.config.kv_heads;
  int64_t stored = 0;
  if (!on_host()) {
    const int64_t coded = kernels::ShadowKvTailLayout(layout, 0).CodedTokensAt(extension_begin_);
    const int64_t chunks =
        layout.static_chunks + kernels::ShadowKvSelectedChunks(layout, extension_begin_);
    stored = chunks * layout.config.chunk_tokens + extension_begin_ - coded +
             layout.config.value_clusters;
    fetched_heads_ += kv_heads * rows.row_count;
  }
  attended_heads_ += kv_heads * rows.row_count;
  for (int32_t row = 0; row < rows.row_count; ++row) {
    attended_extension_ += kv_heads * (stored + rows.positions[row] + 1 - extension_begin_);
  }
}

}  // namespace baton::kv
