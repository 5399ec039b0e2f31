#include "common/engine/step_kv.h"

#include <atomic>
#include <utility>
#include <vector>

#include "absl/time/time.h"

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/engine/executor_context.h"
#include "common/engine/kv_sink.h"
#include "common/engine/ready_kv.h"
#include "common/engine/sequence.h"
#include "common/engine/staged_copies.h"
#include "common/engine/step.h"
#include "common/kv/codec/packed_step_kv.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/kv_format/dense.h"

namespace baton::engine {
namespace {

std::vector<kv::StepSequenceKv> SequencesOf(const Step& step, int32_t full_layers) {
  std::vector<kv::StepSequenceKv> sequences;
  sequences.reserve(step.sequences.size());
  for (const StepSequence& rows : step.sequences) {
    const Sequence& sequence = *rows.sequence;
    sequences.push_back({.dense = {.data = sequence.pages.data(),
                                   .stride = sequence.pages.stride(),
                                   .layers = sequence.pages.tables()},
                         .encoded = sequence.encoded.get(),
                         .hidden = sequence.hidden.get(),
                         .full_layers = full_layers,
                         .extension_begin = rows.prefill ? rows.request->cached_tokens : 0,
                         .computed_tokens = rows.prefill ? rows.token_begin : 0,
                         .prefill = rows.prefill,
                         .completes_prompt = rows.completes_prompt});
  }
  return sequences;
}

}  // namespace

EngineStepKv::EngineStepKv(const Step& step,
                           const ExecutorContext& context,
                           const StepLayers& layers,
                           StagedCopies& staged,
                           std::atomic<int64_t>& progress)
    : PackedStepKv(*context.ops,
                   *context.exec,
                   {.base = context.pool->base(), .layout = context.layout},
                   SequencesOf(step, layers.full_layers)),
      step_(step),
      context_(context),
      layers_(layers),
      staged_(staged),
      progress_(progress) {}

absl::Status EngineStepKv::Attend(const kv::KvRows& rows, const kv::KvQueries& queries) {
  BATON_RETURN_IF_ERROR(PackedStepKv::Attend(rows, queries));
  ++progress_;
  return absl::OkStatus();
}

absl::Status EngineStepKv::LayersWritten(int32_t layer_begin, int32_t layer_end) {
  ++progress_;
  const size_t page_bytes = dense().pages().layout.page_bytes();
  for (const StepSequence& rows : step_.sequences) {
    const ShipRange& ship = rows.ship;
    if (ship.sink == nullptr) {
      continue;
    }
    ReadyKv ready =
        LeavesAsHidden(*rows.sequence, layer_begin, layers_)
            ? MakeReadyKv(
                  *rows.sequence->hidden, layers_.full_layers, ship.hidden_begin, ship.hidden_end)
            : MakeReadyKv(rows, layer_begin, layer_end, page_bytes, *context_.pool);
    if (ready.page_count > 0) {
      BATON_RETURN_IF_ERROR(Ship(rows, std::move(ready)));
    }
  }
  return absl::OkStatus();
}

absl::Status EngineStepKv::Ship(const StepSequence& rows, ReadyKv ready) {
  if (ShipsBehind(rows)) {
    return staged_.Ship(rows, std::move(ready));
  }
  rows.ship.sink->LayersReady(std::move(ready));
  return absl::OkStatus();
}

absl::Status EngineStepKv::EncodeLayer(int32_t sequence, int32_t kv_layer) {
  const Clock& clock = *context_.clock;
  const absl::Time start = clock.Now();
  const absl::Status status = PackedStepKv::EncodeLayer(sequence, kv_layer);
  step_.sequences[static_cast<size_t>(sequence)].sequence->encode_time += clock.Now() - start;
  return status;
}

absl::Status EngineStepKv::OnLayerEncoded(int32_t sequence, int32_t kv_layer) {
  const StepSequence& rows = step_.sequences[static_cast<size_t>(sequence)];
  if (rows.ship.sink == nullptr || rows.sequence->staged != nullptr) {
    return absl::OkStatus();  // those that are staged: at the end of the step
  }
  if (rows.sequence->ships_in_place && !LeavesAsHidden(*rows.sequence, kv_layer, layers_)) {
    return staged_.ShipCoded(rows, kv_layer);
  }
  ReadyKv ready = MakeReadyKv(*rows.sequence, kv_layer, layers_);
  return ready.page_count > 0 ? Ship(rows, std::move(ready)) : absl::OkStatus();
}

}  // namespace baton::engine
