// What a sink is told when layers of a step are written.
#pragma once

#include <cstdint>

#include "common/engine/kv_sink.h"
#include "common/engine/step.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/pool/page_pool.h"

namespace baton::engine {

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
// Those behind the rows.
ReadyKv MakeWindowScores(const kv::HiddenState& hidden, int32_t full_layers);

// The pages of a layer that is encoded; none for a layer that takes none.
ReadyKv MakeReadyKv(const kv::EncodedKv& encoded, int32_t kv_layer);

}  // namespace baton::engine
