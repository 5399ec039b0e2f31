#include "common/kv/codec/shadowkv/shadowkv_codec.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/block_cache.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/shadowkv/shadowkv_call.h"
#include "common/kv/codec/shadowkv/shadowkv_decode_rows.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/codec/shadowkv/shadowkv_sequence.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/buffer.h"
#include "kernels/core/carver.h"
#include "kernels/core/memory.h"
#include "kernels/core/side_queues.h"
#include "kernels/core/step_arrays.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {
namespace {

// A block of the back end's memory with these values.
template <typename T>
absl::StatusOr<kernels::Memory> Uploaded(kernels::MemorySpace& space, std::span<const T> values) {
  BATON_ASSIGN_OR_RETURN(kernels::Memory memory, space.Allocate(values.size_bytes()));
  BATON_RETURN_IF_ERROR(space.Upload(memory.data(), values.data(), values.size_bytes()));
  return memory;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShadowKvCodec>> ShadowKvCodec::Create(const CodecContext& context,
                                                                     BlockCache& blocks) {
  std::unique_ptr<ShadowKvCodec> codec(new ShadowKvCodec(context, blocks));
  if (context.exec.memory->is_host()) {
    codec->exec_.workspace = &codec->workspace_;
  }
  BATON_RETURN_IF_ERROR(codec->FillRope());
  return codec;
}

absl::Status ShadowKvCodec::FillRope() {
  kernels::MemorySpace& space = *context_.exec.memory;
  const std::vector<float>& frequencies = context_.rope.inverse_frequencies;
  std::vector<int32_t> positions(static_cast<size_t>(context_.rope.max_positions));
  std::iota(positions.begin(), positions.end(), 0);
  const size_t bytes = positions.size() * frequencies.size() * sizeof(float);
  BATON_ASSIGN_OR_RETURN(cosines_, space.Allocate(bytes));
  BATON_ASSIGN_OR_RETURN(sines_, space.Allocate(bytes));
  rope_ = {.cosines = cosines_.as<float>(),
           .sines = sines_.as<float>(),
           .positions = context_.rope.max_positions};
  BATON_ASSIGN_OR_RETURN(const kernels::Memory op_positions,
                         Uploaded(space, std::span<const int32_t>(positions)));
  BATON_ASSIGN_OR_RETURN(const kernels::Memory op_frequencies,
                         Uploaded(space, std::span<const float>(frequencies)));
  return context_.ops->rope_angles(context_.exec,
                                   {.positions = op_positions.as<int32_t>(),
                                    .inverse_frequencies = op_frequencies.as<float>(),
                                    .rows = static_cast<int64_t>(positions.size()),
                                    .half_dim = static_cast<int64_t>(frequencies.size()),
                                    .cosines = cosines_.as<float>(),
                                    .sines = sines_.as<float>()});
}

const float* ShadowKvCodec::key_bias(int32_t kv_layer) const {
  return context_.key_bias.empty() ? nullptr : context_.key_bias[static_cast<size_t>(kv_layer)];
}

size_t ShadowKvCodec::LayerWorkspaceBytes(const ShadowKvMap& map,
                                          int32_t kv_layer,
                                          int64_t tokens,
                                          int32_t factored) const {
  const kernels::ShadowKvConfig& config = map.layout(kv_layer).config;
  return std::max(
      context_.ops->workspace_bytes(context_.exec.pool->threads(), config.width(), config.head_dim),
      CodingBytes(map, kv_layer, tokens, factored));
}

size_t ShadowKvCodec::WorkspaceBytes(const ShadowKvMap& map,
                                     int64_t tokens,
                                     int32_t factored) const {
  size_t bytes = 0;
  for (int32_t kv_layer = 0; kv_layer < map.layers(); ++kv_layer) {
    bytes = std::max(bytes, LayerWorkspaceBytes(map, kv_layer, tokens, factored));
  }
  return bytes;
}

size_t ShadowKvCodec::CodingBytes(const ShadowKvMap& map,
                                  int32_t kv_layer,
                                  int64_t tokens,
                                  int32_t factored) const {
  return context_.ops->shadowkv_workspace_bytes(context_.exec.pool->threads(),
                                                {.config = map.layout(kv_layer).config,
                                                 .heads = context_.heads,
                                                 .max_tokens = tokens,
                                                 .layers = map.layers_factored(kv_layer),
                                                 .factored = factored});
}

const kernels::ExecContext& ShadowKvCodec::ExecWith(size_t bytes) {
  if (exec_.memory->is_host() && workspace_.size() < bytes) {
    workspace_ = kernels::Buffer(bytes);
  }
  return exec_;
}

absl::StatusOr<kernels::ExecContext> ShadowKvCodec::ExecToEncode(const EncodeTurn& turn,
                                                                 size_t workspace_bytes) {
  kernels::SideQueues* const side = exec_.side;
  if (side == nullptr || workspace_bytes > side->sizes(turn.rank).workspace_bytes) {
    return ExecWith(workspace_bytes);
  }
  return side->Fork(exec_, turn.rank, turn.index);
}

// Memory grows here rather than between the ops of a step.
absl::StatusOr<std::unique_ptr<DecodeRows>> ShadowKvCodec::Prepare(std::span<const DecodeRow> rows,
                                                                   kernels::StepArrays& arrays) {
  for (const DecodeRow& row : rows) {
    BATON_RETURN_IF_ERROR(static_cast<ShadowKvSequence&>(*row.kv).MakeCache());
  }
  auto prepared = std::make_unique<ShadowKvDecodeRows>(*this, rows, arrays);
  for (const ShadowKvCallSizes& sizes : prepared->sizes()) {
    BATON_RETURN_IF_ERROR(
        SelectionOf(sizes, static_cast<int64_t>(rows.size()), context_.heads).status());
  }
  return prepared;
}

absl::Status ShadowKvCodec::PrepareToExtend(const kernels::DensePageLayout& layout,
                                            const ShadowKvCallSizes& sizes,
                                            int64_t rows) {
  BATON_RETURN_IF_ERROR(working_reader_.Prepare(layout));
  return SelectionOf(sizes, rows, context_.heads).status();
}

absl::Status ShadowKvCodec::Append(const KvEntries& entries,
                                   const kernels::ShadowKvSequence* sequences,
                                   int64_t count,
                                   size_t workspace_bytes) {
  return context_.ops->shadowkv_append(ExecWith(workspace_bytes),
                                       {.k = entries.k,
                                        .k_stride = entries.stride,
                                        .v = entries.v,
                                        .v_stride = entries.stride,
                                        .sequences = sequences,
                                        .num_sequences = count,
                                        .rope = rope_,
                                        .key_bias = key_bias(entries.kv_layer)});
}

absl::Status ShadowKvCodec::CodeJoint(const kernels::ShadowKvSequence* layers,
                                      const float* const* key_biases,
                                      size_t num_layers,
                                      size_t workspace_bytes) {
  return context_.ops->shadowkv_append_joint(ExecWith(workspace_bytes),
                                             {.layers = layers,
                                              .key_bias = key_biases,
                                              .num_layers = static_cast<int64_t>(num_layers),
                                              .rope = rope_});
}

absl::StatusOr<ShadowKvSelection> ShadowKvCodec::SelectionOf(const ShadowKvCallSizes& sizes,
                                                             int64_t sequences,
                                                             int64_t heads) {
  const int64_t ids = sizes.chunk_ids(sequences);
  const int64_t logits = sizes.cluster_logits(sequences, heads);
  const auto carve = [&](kernels::Carver& carver) -> ShadowKvSelection {
    return {.chunk_ids = carver.Take<int32_t>(ids),
            .cluster_logits = logits > 0 ? carver.Take<float>(logits) : nullptr};
  };
  kernels::Carver counter(nullptr);
  carve(counter);
  if (selection_.size() < counter.used()) {
    const size_t grown = std::max(counter.used(), 2 * selection_.size());
    selection_ = {};
    BATON_ASSIGN_OR_RETURN(selection_, context_.exec.memory->Allocate(grown));
  }
  kernels::Carver carver(selection_.data());
  return carve(carver);
}

absl::StatusOr<ShadowKvSelection> ShadowKvCodec::Select(const ShadowKvCall& call,
                                                        const KvQueries& queries) {
  BATON_ASSIGN_OR_RETURN(const ShadowKvSelection selection,
                         SelectionOf(call.sizes, call.count, queries.heads));
  BATON_RETURN_IF_ERROR(
      context_.ops->shadowkv_select(ExecWith(call.workspace_bytes),
                                    {.q = queries.q,
                                     .q_stride = queries.q_stride,
                                     .sequences = call.sequences,
                                     .num_sequences = call.count,
                                     .heads = queries.heads,
                                     .scale = queries.scale,
                                     .chunk_ids = selection.chunk_ids,
                                     .chunk_ids_stride = call.sizes.chunk_ids_stride,
                                     .cluster_logits = selection.cluster_logits,
                                     .cluster_stride = call.sizes.cluster_stride,
                                     .bounds = call.sizes.bounds}));
  return selection;
}

absl::Status ShadowKvCodec::Attend(const ShadowKvCall& call,
                                   const KvQueries& queries,
                                   const ShadowKvSelection& selection,
                                   float* lse) {
  return context_.ops->shadowkv_attention(ExecWith(call.workspace_bytes),
                                          {.q = queries.q,
                                           .q_stride = queries.q_stride,
                                           .sequences = call.sequences,
                                           .num_sequences = call.count,
                                           .heads = queries.heads,
                                           .scale = queries.scale,
                                           .chunk_ids = selection.chunk_ids,
                                           .chunk_ids_stride = call.sizes.chunk_ids_stride,
                                           .cluster_logits = selection.cluster_logits,
                                           .cluster_stride = call.sizes.cluster_stride,
                                           .rope = rope_,
                                           .key_bias = key_bias(queries.kv_layer),
                                           .out = queries.out,
                                           .out_stride = queries.out_stride,
                                           .lse = lse,
                                           .bounds = call.sizes.bounds});
}

}  // namespace baton::kv
