#include "common/kv/codec/shadowkv/shadowkv_decode_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/shadowkv/shadowkv_call.h"
#include "common/kv/codec/shadowkv/shadowkv_codec.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/codec/shadowkv/shadowkv_sequence.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/step_arrays.h"

namespace baton::kv {
namespace {

ShadowKvSequence& SequenceOf(const DecodeRow& row) {
  return static_cast<ShadowKvSequence&>(*row.kv);
}

}  // namespace

ShadowKvDecodeRows::ShadowKvDecodeRows(ShadowKvCodec& codec,
                                       std::span<const DecodeRow> rows,
                                       kernels::StepArrays& arrays)
    : codec_(codec), rows_(rows) {
  const int32_t layers = codec.context().dimensions.layers;
  sequences_.reserve(static_cast<size_t>(layers) * rows.size());
  for (int32_t kv_layer = 0; kv_layer < layers; ++kv_layer) {
    AddLayer(kv_layer);
  }
  op_sequences_ = arrays.Add(sequences_);
  AddDueBlocks(arrays);
  for (const DecodeRow& row : rows) {
    workspace_bytes_ = std::max(workspace_bytes_, SequenceOf(row).workspace_bytes());
  }
}

void ShadowKvDecodeRows::AddLayer(int32_t kv_layer) {
  ShadowKvCallSizes& sizes = sizes_.emplace_back();
  for (const DecodeRow& row : rows_) {
    ShadowKvSequence& sequence = SequenceOf(row);
    sequences_.push_back(sequence.AtStep(kv_layer, row.position));
    sequences_.back().row = row.row;
    sequence.AddTo(sizes, kv_layer, row.position);
  }
}

void ShadowKvDecodeRows::AddDueBlocks(kernels::StepArrays& arrays) {
  for (const DecodeRow& row : rows_) {
    ShadowKvSequence& sequence = SequenceOf(row);
    for (const JointGroup& group : sequence.groups()) {
      std::optional<ShadowKvJointBlock> block = sequence.JointBlockDue(group, row.position);
      if (block.has_value()) {
        DueBlock& due = due_blocks_.emplace_back();
        due.last_layer = group.end - 1;
        due.block = *std::move(block);
        due.layers = arrays.Add(due.block.layers);
        due.key_biases = arrays.Add(due.block.key_biases);
      }
    }
  }
}

absl::Status ShadowKvDecodeRows::Append(const KvEntries& entries) {
  for (const DecodeRow& row : rows_) {
    SequenceOf(row).NoteAppended(row.position);
  }
  const auto count = static_cast<int64_t>(rows_.size());
  BATON_RETURN_IF_ERROR(
      codec_.Append(entries, op_sequences_ + entries.kv_layer * count, count, workspace_bytes_));
  return CodeDueBlocks(entries.kv_layer);
}

absl::Status ShadowKvDecodeRows::CodeDueBlocks(int32_t kv_layer) {
  for (const DueBlock& due : due_blocks_) {
    if (due.last_layer == kv_layer) {
      BATON_RETURN_IF_ERROR(
          codec_.CodeJoint(due.layers, due.key_biases, due.block.layers.size(), workspace_bytes_));
    }
  }
  return absl::OkStatus();
}

absl::Status ShadowKvDecodeRows::Attend(const KvQueries& queries) {
  for (const DecodeRow& row : rows_) {
    SequenceOf(row).CountAttention();
  }
  const auto count = static_cast<int64_t>(rows_.size());
  const ShadowKvCall call = {.sequences = op_sequences_ + queries.kv_layer * count,
                             .count = count,
                             .sizes = sizes_[static_cast<size_t>(queries.kv_layer)],
                             .workspace_bytes = workspace_bytes_};
  BATON_ASSIGN_OR_RETURN(const ShadowKvSelection selection, codec_.Select(call, queries));
  return codec_.Attend(call, queries, selection, /*lse=*/nullptr);
}

}  // namespace baton::kv
