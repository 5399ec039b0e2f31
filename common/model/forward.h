// One forward pass over a packed step: what the engine gives a model and what it gets back.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "common/kv/codec/step_kv.h"

namespace baton::model {

// The KV a model keeps: `layers` counts stored KV layers, i.e. S + G for a SwiftKV model (S full
// layers, G AcrossKV groups) and every layer otherwise.
struct KvShape {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;

  constexpr bool operator==(const KvShape&) const = default;
};

// Rows of one sequence in a packed step.
struct SequenceSlice {
  int32_t row_begin = 0;
  int32_t row_count = 0;
};

// One engine step, packed without padding: the rows of all sequences one after another, ascending
// positions inside a sequence. All memory is borrowed for the call.
struct ForwardBatch {
  std::span<const int32_t> token_ids;  // [rows]
  std::span<const int32_t> positions;  // [rows], absolute
  std::span<const SequenceSlice> sequences;
  // Rows that go past the last full layer of a SwiftKV model (ascending). Ignored by plain models,
  // in which every row runs through every layer; a step may have none.
  std::span<const int32_t> survivors;
  // Rows whose logits are wanted (ascending); each must be a survivor.
  std::span<const int32_t> logit_rows;
  // Where the sequences' keys and values are.
  kv::StepKv* kv = nullptr;
  // Called with the residual stream entering each layer and after the final norm (layer ==
  // num_layers): x is [rows, hidden], all rows of the step, or the survivors from the first layer
  // above the full ones of a SwiftKV model. Tests and tools, which it lets wait for a device; may
  // be empty.
  std::function<void(int32_t layer, std::span<const float> x, int64_t rows)> on_hidden;
};

}  // namespace baton::model
