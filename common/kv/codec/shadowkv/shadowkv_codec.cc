#include "common/kv/codec/shadowkv/shadowkv_codec.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/shadowkv/shadowkv_sequence.h"
#include "common/kv/codec/step_kv.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {
namespace {

// Rows rows[i].row of `source`, each `width` floats, one after another.
void Pack(std::span<const DecodeRow> rows,
          const float* source,
          int64_t stride,
          int64_t width,
          float* target) {
  for (const DecodeRow& row : rows) {
    std::memcpy(target, source + row.row * stride, static_cast<size_t>(width) * sizeof(float));
    target += width;
  }
}

}  // namespace

ShadowKvCodec::ShadowKvCodec(const CodecContext& context, RunPool& pool)
    : context_(context), pool_(pool) {
  const auto positions = static_cast<size_t>(context.rope.max_positions);
  const size_t half_dim = context.rope.inverse_frequencies.size();
  cosines_ = kernels::Buffer(positions * half_dim * sizeof(float));
  sines_ = kernels::Buffer(positions * half_dim * sizeof(float));
  std::vector<int32_t> all(positions);
  std::iota(all.begin(), all.end(), 0);
  const absl::Status status =
      context.ops->rope_angles(context.exec,
                               {.positions = all.data(),
                                .inverse_frequencies = context.rope.inverse_frequencies.data(),
                                .rows = static_cast<int64_t>(positions),
                                .half_dim = static_cast<int64_t>(half_dim),
                                .cosines = cosines_.as<float>(),
                                .sines = sines_.as<float>()});
  BATON_CHECK(status.ok());
  rope_ = {.cosines = cosines_.as<float>(),
           .sines = sines_.as<float>(),
           .positions = context.rope.max_positions};
  exec_ = {.pool = context.exec.pool, .workspace = &workspace_};
}

const float* ShadowKvCodec::key_bias(int32_t kv_layer) const {
  return context_.key_bias.empty() ? nullptr : context_.key_bias[static_cast<size_t>(kv_layer)];
}

size_t ShadowKvCodec::WorkspaceBytes(const kernels::ShadowKvConfig& config,
                                     int64_t max_tokens,
                                     int64_t layers) const {
  const int threads = context_.exec.pool->threads();
  return std::max(
      context_.ops->workspace_bytes(threads, config.width(), config.head_dim),
      context_.ops->shadowkv_workspace_bytes(
          threads,
          {.config = config, .heads = context_.heads, .max_tokens = max_tokens, .layers = layers}));
}

const kernels::ExecContext& ShadowKvCodec::ExecWith(size_t bytes) {
  if (workspace_.size() < bytes) {
    workspace_ = kernels::Buffer(bytes);
  }
  return exec_;
}

size_t ShadowKvCodec::ListSequences(std::span<const DecodeRow> rows, int32_t kv_layer) {
  size_t workspace = 0;
  sequences_.clear();
  for (const DecodeRow& row : rows) {
    auto& sequence = static_cast<ShadowKvSequence&>(*row.kv);
    sequences_.push_back(sequence.AtStep(kv_layer, row.position));
    workspace = std::max(workspace, sequence.workspace_bytes());
  }
  return workspace;
}

absl::Status ShadowKvCodec::Append(std::span<const DecodeRow> rows, const KvEntries& entries) {
  const size_t workspace = ListSequences(rows, entries.kv_layer);
  const int64_t width = int64_t{context_.dimensions.kv_heads} * context_.dimensions.head_dim;
  const size_t floats = rows.size() * static_cast<size_t>(width);
  packed_.resize(2 * floats);
  float* values = packed_.data() + floats;
  Pack(rows, kernels::Floats(entries.k), entries.stride, width, packed_.data());
  Pack(rows, kernels::Floats(entries.v), entries.stride, width, values);
  for (const DecodeRow& row : rows) {
    static_cast<ShadowKvSequence&>(*row.kv).NoteAppended(row.position);
  }
  BATON_RETURN_IF_ERROR(
      context_.ops->shadowkv_append(ExecWith(workspace),
                                    {.k = packed_.data(),
                                     .k_stride = width,
                                     .v = values,
                                     .v_stride = width,
                                     .sequences = sequences_.data(),
                                     .num_sequences = static_cast<int64_t>(sequences_.size()),
                                     .rope = rope_,
                                     .key_bias = key_bias(entries.kv_layer)}));
  for (const DecodeRow& row : rows) {
    BATON_RETURN_IF_ERROR(
        static_cast<ShadowKvSequence&>(*row.kv).CodeJoint(entries.kv_layer, row.position));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ShadowKvCodec::Select(const kernels::ExecContext& exec,
                                              const KvQueries& queries) {
  int64_t chunk_ids_stride = 1;
  cluster_stride_ = 0;
  for (const kernels::ShadowKvSequence& sequence : sequences_) {
    const kernels::ShadowKvConfig& config = sequence.layout->config;
    chunk_ids_stride = std::max(chunk_ids_stride, config.budget_chunks());
    cluster_stride_ = std::max<int64_t>(cluster_stride_, config.value_clusters);
  }
  cluster_logits_.resize(sequences_.size() * static_cast<size_t>(queries.heads * cluster_stride_));
  chunk_ids_.resize(sequences_.size() * static_cast<size_t>(context_.dimensions.kv_heads) *
                    static_cast<size_t>(chunk_ids_stride));
  BATON_RETURN_IF_ERROR(context_.ops->shadowkv_select(
      exec,
      {.q = packed_.data(),
       .q_stride = int64_t{queries.heads} * context_.dimensions.head_dim,
       .sequences = sequences_.data(),
       .num_sequences = static_cast<int64_t>(sequences_.size()),
       .heads = queries.heads,
       .scale = queries.scale,
       .chunk_ids = chunk_ids_.data(),
       .chunk_ids_stride = chunk_ids_stride,
       .cluster_logits = cluster_logits_.data(),
       .cluster_stride = cluster_stride_}));
  return chunk_ids_stride;
}

absl::Status ShadowKvCodec::Attend(std::span<const DecodeRow> rows, const KvQueries& queries) {
  const kernels::ExecContext& exec = ExecWith(ListSequences(rows, queries.kv_layer));
  const int64_t width = int64_t{queries.heads} * context_.dimensions.head_dim;
  packed_.resize(rows.size() * static_cast<size_t>(width));
  out_.resize(packed_.size());
  Pack(rows, kernels::Floats(queries.q), queries.q_stride, width, packed_.data());
  BATON_ASSIGN_OR_RETURN(const int64_t stride, Select(exec, queries));
  counters_.assign(rows.size(), {});
  BATON_RETURN_IF_ERROR(
      context_.ops->shadowkv_attention(exec,
                                       {.q = packed_.data(),
                                        .q_stride = width,
                                        .sequences = sequences_.data(),
                                        .num_sequences = static_cast<int64_t>(sequences_.size()),
                                        .heads = queries.heads,
                                        .scale = queries.scale,
                                        .chunk_ids = chunk_ids_.data(),
                                        .chunk_ids_stride = stride,
                                        .cluster_logits = cluster_logits_.data(),
                                        .cluster_stride = cluster_stride_,
                                        .rope = rope_,
                                        .key_bias = key_bias(queries.kv_layer),
                                        .out = out_.data(),
                                        .out_stride = width,
                                        .counters = counters_.data()}));
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(kernels::Floats(queries.out) + rows[i].row * queries.out_stride,
                out_.data() + static_cast<int64_t>(i) * width,
                static_cast<size_t>(width) * sizeof(float));
    static_cast<ShadowKvSequence&>(*rows[i].kv).Count(counters_[i]);
  }
  return absl::OkStatus();
}

// Attention goes row by row, so that a selection finds in the cache what the row before has
// reconstructed.
absl::Status ShadowKvCodec::AttendBehind(ShadowKvSequence& sequence,
                                         int32_t newest,
                                         const PromptRows& rows,
                                         const KvQueries& queries,
                                         float* lse) {
  const auto count = static_cast<size_t>(rows.row_count);
  const int64_t width = int64_t{queries.heads} * context_.dimensions.head_dim;
  const kernels::ExecContext& exec = ExecWith(sequence.workspace_bytes());
  sequences_.assign(count, sequence.AtStep(queries.kv_layer, newest));
  packed_.resize(count * static_cast<size_t>(width));
  for (int64_t row = 0; row < rows.row_count; ++row) {
    std::memcpy(packed_.data() + row * width,
                kernels::Floats(queries.q) + (rows.row_begin + row) * queries.q_stride,
                static_cast<size_t>(width) * sizeof(float));
  }
  BATON_ASSIGN_OR_RETURN(const int64_t stride, Select(exec, queries));
  for (int64_t row = 0; row < rows.row_count; ++row) {
    kernels::ShadowKvCounters counters;
    BATON_RETURN_IF_ERROR(context_.ops->shadowkv_attention(
        exec,
        {.q = packed_.data() + row * width,
         .q_stride = width,
         .sequences = sequences_.data(),
         .num_sequences = 1,
         .heads = queries.heads,
         .scale = queries.scale,
         .chunk_ids = chunk_ids_.data() + row * context_.dimensions.kv_heads * stride,
         .chunk_ids_stride = stride,
         .cluster_logits = cluster_logits_.data() + row * queries.heads * cluster_stride_,
         .cluster_stride = cluster_stride_,
         .rope = rope_,
         .key_bias = key_bias(queries.kv_layer),
         .out = kernels::Floats(queries.out) + (rows.row_begin + row) * queries.out_stride,
         .out_stride = queries.out_stride,
         .lse = lse + row * queries.heads,
         .counters = &counters}));
    sequence.Count(counters);
  }
  return absl::OkStatus();
}

}  // namespace baton::kv
