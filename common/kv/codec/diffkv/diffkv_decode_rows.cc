#include "common/kv/codec/diffkv/diffkv_decode_rows.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/diffkv/diffkv_codec.h"
#include "common/kv/codec/diffkv/diffkv_sequence.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kv {
namespace {

DiffKvSequence& SequenceOf(const DecodeRow& row) { return static_cast<DiffKvSequence&>(*row.kv); }

}  // namespace

DiffKvDecodeRows::DiffKvDecodeRows(DiffKvCodec& codec,
                                   std::span<const DecodeRow> rows,
                                   kernels::StepArrays& arrays)
    : codec_(codec), rows_(rows) {
  const int32_t layers = codec.context().dimensions.layers;
  append_rows_.reserve(static_cast<size_t>(layers) * rows.size());
  attention_rows_.reserve(static_cast<size_t>(layers) * rows.size());
  for (int32_t kv_layer = 0; kv_layer < layers; ++kv_layer) {
    AddLayer(kv_layer);
  }
  op_append_rows_ = arrays.Add(append_rows_);
  op_attention_rows_ = arrays.Add(attention_rows_);
}

void DiffKvDecodeRows::AddLayer(int32_t kv_layer) {
  int64_t scratch = 0;
  for (const DecodeRow& row : rows_) {
    DiffKvSequence& sequence = SequenceOf(row);
    const bool observes = sequence.ObservesAt(row.position);
    observes_ = observes_ || observes;
    append_rows_.push_back({.layer = sequence.layer(kv_layer),
                            .policy = sequence.policy(kv_layer),
                            .row = row.row,
                            .position = row.position,
                            .sweep = observes,
                            .lease = sequence.op_lease(),
                            .actions = sequence.actions(kv_layer)});
    const int64_t stride = sequence.probability_stride();
    attention_rows_.push_back({.layer = sequence.layer(kv_layer),
                               .row = row.row,
                               .position = row.position,
                               .probabilities = observes ? sequence.probabilities() : nullptr,
                               .probability_stride = stride,
                               .scratch_begin = scratch});
    scratch += kernels::DiffKvScratchFloats(codec_.geometry(), codec_.context().heads, stride);
  }
  scratch_floats_ = static_cast<size_t>(scratch);
}

absl::Status DiffKvDecodeRows::Begin() {
  const CodecContext& context = codec_.context();
  if (observes_) {
    BATON_RETURN_IF_ERROR(
        context.ops->diffkv_sweep(context.exec,
                                  {.rows = op_append_rows_,
                                   .num_rows = static_cast<int64_t>(append_rows_.size()),
                                   .pages = codec_.pages()}));
  }
  return context.ops->diffkv_take_pages(context.exec,
                                        {.rows = op_append_rows_,
                                         .layers = context.dimensions.layers,
                                         .sequences = static_cast<int64_t>(rows_.size()),
                                         .pages = codec_.pages()});
}

absl::Status DiffKvDecodeRows::Append(const KvEntries& entries) {
  if (!begun_) {
    begun_ = true;
    BATON_RETURN_IF_ERROR(Begin());
  }
  for (const DecodeRow& row : rows_) {
    SequenceOf(row).NoteAppended(row.position);
  }
  const auto count = static_cast<int64_t>(rows_.size());
  const CodecContext& context = codec_.context();
  return context.ops->diffkv_append(context.exec,
                                    {.k = entries.k,
                                     .v = entries.v,
                                     .stride = entries.stride,
                                     .rows = op_append_rows_ + entries.kv_layer * count,
                                     .num_rows = count,
                                     .pages = codec_.pages()});
}

absl::Status DiffKvDecodeRows::Attend(const KvQueries& queries) {
  for (const DecodeRow& row : rows_) {
    SequenceOf(row).CountAttention(queries.kv_layer);
  }
  BATON_ASSIGN_OR_RETURN(float* const scratch, codec_.Scratch(scratch_floats_));
  const auto count = static_cast<int64_t>(rows_.size());
  const CodecContext& context = codec_.context();
  return context.ops->diffkv_attention(context.exec,
                                       {.q = queries.q,
                                        .q_stride = queries.q_stride,
                                        .out = queries.out,
                                        .out_stride = queries.out_stride,
                                        .scratch = scratch,
                                        .rows = op_attention_rows_ + queries.kv_layer * count,
                                        .num_rows = count,
                                        .pages = codec_.pages(),
                                        .heads = queries.heads,
                                        .scale = queries.scale,
                                        .sliding_window = queries.sliding_window,
                                        .first = queries.first_reader,
                                        .last = queries.last_reader,
                                        .scored = observes_});
}

}  // namespace baton::kv
