#include "common/engine/ready_kv.h"

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
      ready.pages.push_back(pool.page(sequence.sequence->pages.at(layer, page)).first(page_bytes));
    }
  }
  return ready;
}

}  // namespace baton::engine
