#include "tests/gpu/bench/model_shadowkv_kv.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/step_arrays.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/model_loaded.h"
#include "tests/gpu/bench/shadowkv_chunk_lists.h"
#include "tests/gpu/bench/shadowkv_load.h"
#include "tests/gpu/bench/shadowkv_pool.h"

namespace baton::model {

using kernels::ShadowKvCounters;
using kernels::ShadowKvSequence;
using kernels::cuda::ShadowKvChunkLists;
using kernels::cuda::ShadowKvLoad;

absl::StatusOr<std::unique_ptr<ModelShadowKvKv>> ModelShadowKvKv::Create(const LoadedModel& loaded,
                                                                         const ShadowKvLoad& load) {
  std::unique_ptr<ModelShadowKvKv> kv(new ModelShadowKvKv(loaded, load));
  BATON_ASSIGN_OR_RETURN(kv->pool_, kernels::cuda::ShadowKvPool::Make(*loaded.exec.queue, load));
  kv->selected_ids_ = kv->arena_.Allocate<int32_t>(load.layer_ids());
  BATON_RETURN_IF_ERROR(kv->arena_.status());
  return kv;
}

int64_t ModelShadowKvKv::SequenceBytes(const ShadowKvLoad& load) {
  return load.layers *
         static_cast<int64_t>(load.layout.bytes + load.tail_bytes() + load.cache_bytes());
}

int64_t ModelShadowKvKv::HostSequenceBytes(const ShadowKvLoad& load) {
  return load.layers * static_cast<int64_t>(load.prompt_value_bytes() + load.tail_value_bytes());
}

absl::Status ModelShadowKvKv::ForceHits(double share) {
  hits_ = std::lround(share * static_cast<double>(load_.config().budget_chunks()));
  ShadowKvLoad layer = load_;
  layer.layers = 1;
  const ShadowKvChunkLists lists(layer, pool_.static_ids(), hits_);
  missed_chunks_ = lists.missed_chunks();
  forced_arena_ = {};
  forced_ids_ = forced_arena_.Upload(lists.ids());
  return forced_arena_.status();
}

double ModelShadowKvKv::read_bytes() const {
  return load_.select_bytes() + load_.attention_bytes(hits_, missed_chunks_);
}

absl::StatusOr<ShadowKvCounters> ModelShadowKvKv::Counters() const {
  BATON_RETURN_IF_ERROR(loaded_.exec.queue->Wait());
  BATON_ASSIGN_OR_RETURN(const std::vector<ShadowKvCounters> counters,
                         kernels::cuda::Downloaded(pool_.counters(0), load_.sequences()));
  ShadowKvCounters sum;
  for (const ShadowKvCounters& of_sequence : counters) {
    sum.hits += of_sequence.hits;
    sum.misses += of_sequence.misses;
    sum.attended_tokens += of_sequence.attended_tokens;
  }
  return sum;
}

absl::Status ModelShadowKvKv::Prepare(std::span<const kv::KvRows> tiles,
                                      kernels::StepArrays& arrays) {
  if (tiles.size() != 1 || tiles.front().rows != load_.rows) {
    return absl::InternalError("a decode row of every sequence in one tile is wanted");
  }
  ++step_;
  const int32_t* positions = tiles.front().positions;
  sizes_ = {};
  for (int32_t row = 0; row < load_.rows; ++row) {
    sizes_.Add(load_.layout, positions[row], /*cached=*/true);
  }
  sequences_.clear();
  for (int32_t layer = 0; layer < load_.layers; ++layer) {
    for (int32_t row = 0; row < load_.rows; ++row) {
      sequences_.push_back(pool_.sequence(layer, row));
      sequences_.back().position = positions[row];
    }
  }
  op_sequences_ = arrays.Add(sequences_);
  return absl::OkStatus();
}

absl::Status ModelShadowKvKv::Write(const kv::KvRows& /*rows*/, const kv::KvEntries& entries) {
  return loaded_.ops.shadowkv_append(loaded_.exec,
                                     {.k = entries.k,
                                      .k_stride = entries.stride,
                                      .v = entries.v,
                                      .v_stride = entries.stride,
                                      .sequences = OpSequences(entries.kv_layer),
                                      .num_sequences = load_.rows,
                                      .rope = pool_.rope(),
                                      .key_bias = loaded_.model.key_bias(entries.kv_layer)});
}

absl::Status ModelShadowKvKv::Attend(const kv::KvRows& /*rows*/, const kv::KvQueries& queries) {
  BATON_RETURN_IF_ERROR(Select(queries));
  return loaded_.ops.shadowkv_attention(loaded_.exec,
                                        {.q = queries.q,
                                         .q_stride = queries.q_stride,
                                         .sequences = OpSequences(queries.kv_layer),
                                         .num_sequences = load_.rows,
                                         .heads = queries.heads,
                                         .scale = queries.scale,
                                         .chunk_ids = ChunkIds(),
                                         .chunk_ids_stride = sizes_.chunk_ids_stride,
                                         .rope = pool_.rope(),
                                         .key_bias = loaded_.model.key_bias(queries.kv_layer),
                                         .out = queries.out,
                                         .out_stride = queries.out_stride,
                                         .bounds = sizes_.bounds});
}

absl::Status ModelShadowKvKv::Select(const kv::KvQueries& queries) const {
  return loaded_.ops.shadowkv_select(loaded_.exec,
                                     {.q = queries.q,
                                      .q_stride = queries.q_stride,
                                      .sequences = OpSequences(queries.kv_layer),
                                      .num_sequences = load_.rows,
                                      .heads = queries.heads,
                                      .scale = queries.scale,
                                      .chunk_ids = selected_ids_,
                                      .chunk_ids_stride = sizes_.chunk_ids_stride,
                                      .bounds = sizes_.bounds});
}

const int32_t* ModelShadowKvKv::ChunkIds() const {
  if (forced_ids_ == nullptr) {
    return selected_ids_;
  }
  return forced_ids_ + step_ % ShadowKvChunkLists::kTurns * load_.layer_ids();
}

}  // namespace baton::model
