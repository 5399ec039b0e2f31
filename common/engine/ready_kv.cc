#include "common/engine/ready_kv.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/engine/kv_sink.h"
#include "common/engine/sequence.h"
#include "common/engine/step.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/pool/page_pool.h"

namespace baton::engine {

ReadyKv MakeReadyKv(const StepSequence& sequence,
                    int32_t layer_begin,
                    int32_t layer_end,
                    size_t page_bytes,
                    kv::PagePool& pool) {
  const ShipRange& ship = sequence.ship;
  ReadyKv ready = {.layer_begin = layer_begin,
                   .layer_end = layer_end,
                   .page_begin = ship.page_begin,
                   .page_count = ship.page_end - ship.page_begin,
                   .memory = {}};
  for (int32_t layer = layer_begin; layer < layer_end; ++layer) {
    const auto ids = sequence.sequence->pages.table(layer).subspan(
        static_cast<size_t>(ship.page_begin), static_cast<size_t>(ready.page_count));
    const auto pieces = pool.Pieces(ids, page_bytes);
    ready.memory.insert(ready.memory.end(), pieces.begin(), pieces.end());
  }
  return ready;
}

ReadyKv MakeReadyKv(const kv::HiddenState& hidden,
                    int32_t full_layers,
                    int32_t page_begin,
                    int32_t page_end) {
  return {.layer_begin = full_layers,
          .layer_end = full_layers + 1,
          .page_begin = page_begin,
          .page_count = page_end - page_begin,
          .memory = {hidden.pages(page_begin, page_end - page_begin)}};
}

ReadyKv MakeReadyKv(const Sequence& sequence, int32_t kv_layer, const StepLayers& layers) {
  if (LeavesAsHidden(sequence, kv_layer, layers)) {
    const kv::HiddenState& hidden = *sequence.hidden;
    const kv::HiddenShape& shape = hidden.shape();
    return kv_layer + 1 < layers.layers
               ? ReadyKv()
               : MakeReadyKv(hidden, layers.full_layers, shape.row_pages(), shape.pages());
  }
  kv::EncodedLayer layer = sequence.encoded->LayerPages(kv_layer);
  return {.layer_begin = kv_layer,
          .layer_end = kv_layer + 1,
          .page_begin = 0,
          .page_count = layer.pages,
          .memory = std::move(layer.memory),
          .encoded = true};
}

}  // namespace baton::engine
