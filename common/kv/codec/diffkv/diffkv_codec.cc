#include "common/kv/codec/diffkv/diffkv_codec.h"

#include <algorithm>
#include <span>

#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/diffkv/diffkv_sequence.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kv {

DiffKvCodec::DiffKvCodec(const CodecContext& context,
                         PagePool& pool,
                         kernels::DiffKvTier high,
                         kernels::DiffKvTier low)
    : context_(context),
      pool_(pool),
      geometry_({.kv_heads = context.dimensions.kv_heads,
                 .head_dim = context.dimensions.head_dim,
                 .tiers = {high, low}}) {}

float* DiffKvCodec::Scratch(size_t floats) {
  if (scratch_.size() < floats) {
    scratch_.resize(std::max(floats, 2 * scratch_.size()));
  }
  return scratch_.data();
}

absl::Status DiffKvCodec::Append(std::span<const DecodeRow> rows, const KvEntries& entries) {
  const auto heads = static_cast<size_t>(geometry_.kv_heads);
  actions_.resize(rows.size() * heads);
  append_rows_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    auto& sequence = static_cast<DiffKvSequence&>(*rows[i].kv);
    append_rows_.push_back({.layer = sequence.layer(entries.kv_layer),
                            .policy = sequence.policy(entries.kv_layer),
                            .k = kernels::Floats(entries.k) + rows[i].row * entries.stride,
                            .v = kernels::Floats(entries.v) + rows[i].row * entries.stride,
                            .position = rows[i].position,
                            .sweep = sequence.SweepsAt(rows[i].position),
                            .lease = &sequence.lease(),
                            .actions = actions_.data() + i * heads});
    sequence.NoteAppended(rows[i].position);
  }
  return context_.ops->diffkv_append(context_.exec,
                                     {.rows = append_rows_.data(),
                                      .num_rows = static_cast<int64_t>(append_rows_.size()),
                                      .pages = pages()});
}

absl::Status DiffKvCodec::Attend(std::span<const DecodeRow> rows, const KvQueries& queries) {
  int64_t scratch = 0;
  for (const DecodeRow& row : rows) {
    scratch += kernels::DiffKvScratchFloats(
        geometry_, queries.heads, static_cast<const DiffKvSequence&>(*row.kv).probability_stride());
  }
  float* next = Scratch(static_cast<size_t>(scratch));
  attention_rows_.clear();
  for (const DecodeRow& row : rows) {
    auto& sequence = static_cast<DiffKvSequence&>(*row.kv);
    const int64_t stride = sequence.probability_stride();
    sequence.CountAttention(queries.kv_layer);
    attention_rows_.push_back({.layer = sequence.layer(queries.kv_layer),
                               .q = kernels::Floats(queries.q) + row.row * queries.q_stride,
                               .out = kernels::Floats(queries.out) + row.row * queries.out_stride,
                               .position = row.position,
                               .probabilities = sequence.probabilities(),
                               .probability_stride = stride,
                               .scratch = next});
    next += kernels::DiffKvScratchFloats(geometry_, queries.heads, stride);
  }
  return context_.ops->diffkv_attention(context_.exec,
                                        {.rows = attention_rows_.data(),
                                         .num_rows = static_cast<int64_t>(attention_rows_.size()),
                                         .pages = pages(),
                                         .heads = queries.heads,
                                         .scale = queries.scale,
                                         .sliding_window = queries.sliding_window,
                                         .first = queries.first_reader,
                                         .last = queries.last_reader});
}

}  // namespace baton::kv
