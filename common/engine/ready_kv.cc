#include "common/engine/ready_kv.h"

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
                   .pages = {}};
  for (int32_t layer = layer_begin; layer < layer_end; ++layer) {
    for (int32_t page = ship.page_begin; page < ship.page_end; ++page) {
      ready.pages.emplace_back(
          pool.page(sequence.sequence->pages.at(layer, page)).first(page_bytes));
    }
  }
  return ready;
}

ReadyKv MakeReadyKv(const kv::HiddenState& hidden,
                    int32_t full_layers,
                    int32_t page_begin,
                    int32_t page_end) {
  ReadyKv ready = {.layer_begin = full_layers,
                   .layer_end = full_layers + 1,
                   .page_begin = page_begin,
                   .page_count = page_end - page_begin,
                   .pages = {}};
  for (int32_t page = page_begin; page < page_end; ++page) {
    ready.pages.emplace_back(hidden.page(page));
  }
  return ready;
}

ReadyKv MakeReadyKv(const Sequence& sequence, int32_t kv_layer, const StepLayers& layers) {
  if (LeavesAsHidden(sequence, kv_layer, layers)) {
    const kv::HiddenState& hidden = *sequence.hidden;
    const kv::HiddenShape& shape = hidden.shape();
    return kv_layer + 1 < layers.layers
               ? ReadyKv()
               : MakeReadyKv(hidden, layers.full_layers, shape.row_pages(), shape.pages());
  }
  ReadyKv ready = {.layer_begin = kv_layer,
                   .layer_end = kv_layer + 1,
                   .page_begin = 0,
                   .page_count = 0,
                   .pages = sequence.encoded->LayerPages(kv_layer)};
  ready.page_count = static_cast<int32_t>(ready.pages.size());
  return ready;
}

}  // namespace baton::engine
