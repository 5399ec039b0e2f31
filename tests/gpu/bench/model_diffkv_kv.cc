#include "tests/gpu/bench/model_diffkv_kv.h"

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
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/diffkv_arrays.h"
#include "tests/gpu/bench/diffkv_default_policy.h"
#include "tests/gpu/bench/diffkv_load.h"
#include "tests/gpu/bench/diffkv_pool.h"
#include "tests/gpu/bench/model_loaded.h"

namespace baton::model {
namespace {

using kernels::cuda::DiffKvLoad;

// Tokens that a head may come to hold.
int64_t MostTokens(const DiffKvLoad& load) { return int64_t{load.tokens} + load.growth; }
int64_t ScratchFloats(const DiffKvLoad& load, int64_t heads) {
  return kernels::DiffKvScratchFloats(load.geometry, heads, MostTokens(load));
}
int64_t ProbabilityFloats(const DiffKvLoad& load) {
  return load.geometry.kv_heads * MostTokens(load);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelDiffKvKv>> ModelDiffKvKv::Create(const LoadedModel& loaded,
                                                                     const DiffKvLoad& load) {
  std::unique_ptr<ModelDiffKvKv> kv(new ModelDiffKvKv(loaded, load));
  BATON_ASSIGN_OR_RETURN(kv->pool_, kernels::cuda::DiffKvPool::Make(*loaded.exec.queue, load));
  BATON_RETURN_IF_ERROR(kv->Allocate());
  return kv;
}

int64_t ModelDiffKvKv::SequenceBytes(const DiffKvLoad& load, int64_t heads) {
  const auto page = static_cast<int64_t>(load.geometry.page_bytes() + sizeof(int32_t));
  const int64_t pages = int64_t{load.geometry.kv_heads} * load.columns() * load.layers;
  const int64_t floats = ScratchFloats(load, heads) + ProbabilityFloats(load);
  return pages * page + floats * static_cast<int64_t>(sizeof(float));
}

absl::Status ModelDiffKvKv::Allocate() {
  unobserved_ = arena_.Upload(
      std::vector<kernels::UnobservedRange>{kernels::DiffKvUnobserved(0, load_.tokens)});
  actions_ = arena_.Allocate<kernels::DiffKvAction>(load_.sequences() * load_.geometry.kv_heads);
  probabilities_ = arena_.Allocate<float>(load_.rows * ProbabilityFloats(load_));
  scratch_ =
      arena_.Allocate<float>(load_.rows * ScratchFloats(load_, loaded_.model.config().num_heads));
  return arena_.status();
}

absl::Status ModelDiffKvKv::CheckAppended() const {
  BATON_ASSIGN_OR_RETURN(const std::vector<kernels::DiffKvAction> actions,
                         kernels::cuda::Downloaded<kernels::DiffKvAction>(
                             actions_, load_.sequences() * load_.geometry.kv_heads));
  for (const kernels::DiffKvAction& action : actions) {
    if (action.high_slot < 0) {
      return absl::InternalError("a new token found no room");
    }
  }
  return absl::OkStatus();
}

absl::Status ModelDiffKvKv::Prepare(std::span<const kv::KvRows> tiles,
                                    kernels::StepArrays& arrays) {
  if (tiles.size() != 1 || tiles.front().rows != load_.rows) {
    return absl::InternalError("a decode row of every sequence in one tile is wanted");
  }
  ++step_;
  scored_ = false;
  sweeps_ = false;
  begun_ = false;
  append_rows_.clear();
  attention_rows_.clear();
  for (int32_t layer = 0; layer < load_.layers; ++layer) {
    AddLayer(layer, tiles.front());
  }
  op_append_rows_ = arrays.Add(append_rows_);
  op_attention_rows_ = arrays.Add(attention_rows_);
  return absl::OkStatus();
}

void ModelDiffKvKv::AddLayer(int32_t layer, const kv::KvRows& tile) {
  const kernels::cuda::DiffKvArrays& arrays = pool_.arrays();
  const kernels::DiffKvPolicy policy = kernels::cuda::DiffKvDefaultPolicy(unobserved_);
  const int64_t scratch_floats = ScratchFloats(load_, loaded_.model.config().num_heads);
  for (int32_t row = 0; row < load_.rows; ++row) {
    const bool scored = InTurn(turns_.score_every, row);
    scored_ = scored_ || scored;
    const bool sweeps = InTurn(turns_.sweep_every, row);
    sweeps_ = sweeps_ || sweeps;
    append_rows_.push_back(
        {.layer = arrays.layer(layer, row),
         .policy = policy,
         .row = row,
         .position = tile.positions[row],
         .sweep = sweeps,
         .lease = arrays.lease(row),
         .actions = actions_ + (int64_t{layer} * load_.rows + row) * load_.geometry.kv_heads});
    attention_rows_.push_back(
        {.layer = arrays.layer(layer, row),
         .row = row,
         .position = tile.positions[row],
         .probabilities = scored ? probabilities_ + row * ProbabilityFloats(load_) : nullptr,
         .probability_stride = MostTokens(load_),
         .scratch_begin = row * scratch_floats});
  }
}

absl::Status ModelDiffKvKv::Begin() {
  const kernels::DiffKvPages pages = pool_.arrays().pool();
  if (sweeps_) {
    BATON_RETURN_IF_ERROR(loaded_.ops.diffkv_sweep(
        loaded_.exec, {.rows = op_append_rows_, .num_rows = load_.sequences(), .pages = pages}));
  }
  if (!turns_.take_pages) {
    return absl::OkStatus();
  }
  return loaded_.ops.diffkv_take_pages(
      loaded_.exec,
      {.rows = op_append_rows_, .layers = load_.layers, .sequences = load_.rows, .pages = pages});
}

absl::Status ModelDiffKvKv::Write(const kv::KvRows& /*rows*/, const kv::KvEntries& entries) {
  if (!turns_.append) {
    return absl::OkStatus();
  }
  if (!begun_) {
    begun_ = true;
    BATON_RETURN_IF_ERROR(Begin());
  }
  return loaded_.ops.diffkv_append(
      loaded_.exec,
      {.k = entries.k,
       .v = entries.v,
       .stride = entries.stride,
       .rows = op_append_rows_ + int64_t{entries.kv_layer} * load_.rows,
       .num_rows = load_.rows,
       .pages = pool_.arrays().pool()});
}

absl::Status ModelDiffKvKv::Attend(const kv::KvRows& /*rows*/, const kv::KvQueries& queries) {
  return loaded_.ops.diffkv_attention(
      loaded_.exec,
      {.q = queries.q,
       .q_stride = queries.q_stride,
       .out = queries.out,
       .out_stride = queries.out_stride,
       .scratch = scratch_,
       .rows = op_attention_rows_ + int64_t{queries.kv_layer} * load_.rows,
       .num_rows = load_.rows,
       .pages = pool_.arrays().pool(),
       .heads = queries.heads,
       .scale = queries.scale,
       .sliding_window = queries.sliding_window,
       .first = queries.first_reader,
       .last = queries.last_reader,
       .scored = scored_});
}

}  // namespace baton::model
