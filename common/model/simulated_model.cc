#include "common/model/simulated_model.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/model_config.h"
#include "common/kv/codec/step_kv.h"
#include "common/model/forward.h"
#include "common/model/model.h"
#include "common/model/rope.h"
#include "common/model/row_set.h"
#include "common/model/validate_batch.h"
#include "kernels/core/memory.h"

namespace baton::model {
namespace {

int64_t KvWidth(const checkpoint::ModelConfig& config) {
  return int64_t{config.num_kv_heads} * config.head_dim;
}

// Elements of a row that KV is written from: keys or values of a layer, or a hidden state.
int64_t NoiseWidth(const checkpoint::ModelConfig& config) {
  return std::max<int64_t>(KvWidth(config), config.hidden_size);
}

// Uniform in [-1, 1): encoders look at the values, and have nothing to do for constant ones.
void FillWithNoise(std::span<float> values) {
  uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525 + 1013904223;  // the generator of Numerical Recipes
    value = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
  }
}

struct StepRows {
  int64_t prompt_tokens = 0;
  int64_t decode_sequences = 0;
};

StepRows CountRows(const ForwardBatch& batch) {
  StepRows rows;
  for (const SequenceSlice& slice : batch.sequences) {
    if (slice.row_count == 1) {
      ++rows.decode_sequences;
    } else {
      rows.prompt_tokens += slice.row_count;
    }
  }
  return rows;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> SimulatedModel::Create(SimulatedContext context) {
  kernels::MemorySpace& space = *context.exec.memory;
  if (!space.is_host()) {
    return absl::UnimplementedError("a simulated model needs a back end on the host");
  }
  const checkpoint::ModelConfig& config = context.config;
  const int32_t max_rows = context.options.max_step_rows;
  const int32_t tile_rows = TileRows(*context.ops, max_rows);
  BATON_ASSIGN_OR_RETURN(RowSet rows,
                         RowSet::Create(max_rows, tile_rows, config.head_dim / 2, space));
  const auto elements = static_cast<size_t>(tile_rows * NoiseWidth(config));
  BATON_ASSIGN_OR_RETURN(kernels::Memory noise, space.Allocate(elements * sizeof(float)));
  FillWithNoise({noise.as<float>(), elements});
  return std::unique_ptr<Model>(
      new SimulatedModel(std::move(context), std::move(rows), std::move(noise)));
}

SimulatedModel::SimulatedModel(SimulatedContext context, RowSet rows, kernels::Memory noise)
    : config_(std::move(context.config)),
      fingerprint_(context.fingerprint),
      options_(context.options),
      simulation_(context.simulation),
      clock_(*context.clock),
      inverse_frequencies_(RopeInverseFrequencies(config_)),
      rows_(std::move(rows)),
      arrays_(*context.exec.memory),
      noise_(std::move(noise)),
      noise_width_(NoiseWidth(config_)) {}

KvShape SimulatedModel::kv_shape() const {
  return {.layers = config_.num_kv_cache_layers(),
          .kv_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim};
}

absl::Status SimulatedModel::Forward(const ForwardBatch& batch, std::span<float> /*logits*/) {
  const absl::Time start = clock_.Now();
  const size_t no_logits = batch.logit_rows.size() * static_cast<size_t>(config_.vocab_size);
  BATON_RETURN_IF_ERROR(ValidateBatch(batch, config_, options_, no_logits));
  if (batch.token_ids.empty()) {
    return absl::OkStatus();
  }
  const StepRows rows = CountRows(batch);
  const absl::Duration time = simulation_.StepTime(rows.prompt_tokens, rows.decode_sequences);
  // Layers of a step that only decodes go nowhere: nobody sees when they are written.
  const Pace pace = {.start = start,
                     .per_layer = rows.prompt_tokens > 0 ? time / config_.num_kv_cache_layers()
                                                         : absl::ZeroDuration()};
  BATON_RETURN_IF_ERROR(Prepare(batch));
  BATON_RETURN_IF_ERROR(RunFullLayers(*batch.kv, pace));
  if (config_.swiftkv()) {
    BATON_RETURN_IF_ERROR(RunUpperLayers(batch, pace));
  }
  WaitUntil(start + time);
  return absl::OkStatus();
}

absl::Status SimulatedModel::Prepare(const ForwardBatch& batch) {
  arrays_.Clear();
  rows_.SetAll(batch, 0, arrays_);
  BATON_RETURN_IF_ERROR(batch.kv->Prepare(rows_.tiles(), arrays_));
  return arrays_.Upload();
}

absl::Status SimulatedModel::RunFullLayers(kv::StepKv& kv, const Pace& pace) {
  for (int32_t layer = 0; layer < config_.num_key_value_layers; ++layer) {
    BATON_RETURN_IF_ERROR(WriteLayers(kv, layer, layer + 1));
    WaitUntil(pace.start + (layer + 1) * pace.per_layer);
    BATON_RETURN_IF_ERROR(kv.LayersWritten(layer, layer + 1));
    BATON_RETURN_IF_ERROR(kv.LayerAttended(layer));
  }
  return absl::OkStatus();
}

absl::Status SimulatedModel::RunUpperLayers(const ForwardBatch& batch, const Pace& pace) {
  const int32_t full_layers = config_.num_key_value_layers;
  const int32_t layers = config_.num_kv_cache_layers();
  BATON_RETURN_IF_ERROR(WriteHidden(*batch.kv));
  BATON_RETURN_IF_ERROR(WriteLayers(*batch.kv, full_layers, layers));
  BATON_RETURN_IF_ERROR(batch.kv->LayersWritten(full_layers, layers));
  for (int32_t layer = full_layers; layer < layers && !batch.survivors.empty(); ++layer) {
    WaitUntil(pace.start + (layer + 1) * pace.per_layer);
    BATON_RETURN_IF_ERROR(batch.kv->LayerAttended(layer));
  }
  return absl::OkStatus();
}

absl::Status SimulatedModel::ExpandHidden(const ForwardBatch& batch, ReadHidden read) {
  if (!config_.swiftkv()) {
    return Model::ExpandHidden(batch, read);
  }
  if (batch.positions.size() > static_cast<size_t>(options_.max_step_rows)) {
    return absl::InvalidArgumentError("hidden states: too many rows");
  }
  BATON_RETURN_IF_ERROR(Prepare(batch));
  return WriteLayers(*batch.kv, config_.num_key_value_layers, config_.num_kv_cache_layers());
}

absl::Status SimulatedModel::WriteLayers(kv::StepKv& kv, int32_t layer_begin, int32_t layer_end) {
  for (int32_t layer = layer_begin; layer < layer_end; ++layer) {
    for (const kv::KvRows& tile : rows_.tiles()) {
      BATON_RETURN_IF_ERROR(kv.Write(
          tile,
          {.kv_layer = layer, .k = noise_.data(), .v = noise_.data(), .stride = noise_width_}));
    }
  }
  return absl::OkStatus();
}

absl::Status SimulatedModel::WriteHidden(kv::StepKv& kv) {
  for (const kv::KvRows& tile : rows_.tiles()) {
    BATON_RETURN_IF_ERROR(kv.WriteHidden(tile, noise_.data(), noise_width_));
  }
  return absl::OkStatus();
}

void SimulatedModel::WaitUntil(absl::Time time) {
  absl::MutexLock lock(&mutex_);
  while (clock_.Now() < time) {
    clock_.WaitUntil(mutex_, never_, time);
  }
}

}  // namespace baton::model
