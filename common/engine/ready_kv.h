// What a sink is told when layers of a step are written.
#pragma once

#include <cstdint>

#include "common/engine/kv_sink.h"
#include "common/engine/sequence.h"
#include "common/engine/step.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/pool/page_pool.h"

namespace baton::engine {

// Stored layers of the model: all, and the full ones below the upper SwiftKV layers.
struct StepLayers {
  int32_t layers = 0;
  int32_t full_layers = 0;
};

// Whether hidden states leave in place of this stored layer.
inline bool LeavesAsHidden(const Sequence& sequence, int32_t kv_layer, const StepLayers& layers) {
  return sequence.hidden != nullptr && kv_layer >= layers.full_layers;
}

// The pages of `sequence.ship` for layers [layer_begin, layer_end), each `page_bytes` long. Reads
// the page table only; executor thread.
ReadyKv MakeReadyKv(const StepSequence& sequence,
                    int32_t layer_begin,
                    int32_t layer_end,
                    size_t page_bytes,
                    kv::PagePool& pool);

// Pages [page_begin, page_end) of hidden states, which go behind the `full_layers` that are
// shipped.
ReadyKv MakeReadyKv(const kv::HiddenState& hidden,
                    int32_t full_layers,
                    int32_t page_begin,
                    int32_t page_end);

// What leaves with a layer of an encoded prompt: its pages, none for a layer that takes none. Of
// upper layers that leave as hidden states, with the last one the window scores of all.
ReadyKv MakeReadyKv(const Sequence& sequence, int32_t kv_layer, const StepLayers& layers);

}  // namespace baton::engine
