#include "common/worker/operations/get_loads.h"

#include <algorithm>
#include <cstdint>

#include "common/worker/worker.h"

namespace baton::worker::operations {
namespace {

// Sequences that would start at once.
uint32_t FreeSlots(const Worker& worker, const engine::EngineLoad& load) {
  const int64_t taken = load.running_sequences + load.waiting_requests + load.reservations;
  const int64_t slots = worker.engine().options().max_running_sequences - taken;
  return worker.ready() ? static_cast<uint32_t>(std::max<int64_t>(slots, 0)) : 0;
}

}  // namespace

v1::Loads GetLoads(const Worker& worker) {
  const engine::EngineLoad load = worker.engine().load();
  v1::Loads loads;
  loads.set_incarnation(worker.incarnation());
  loads.set_ready(worker.ready());
  loads.set_draining(load.draining);
  loads.set_waiting_requests(static_cast<uint64_t>(load.waiting_requests));
  loads.set_waiting_tokens(static_cast<uint64_t>(load.waiting_tokens));
  loads.set_running_sequences(static_cast<uint64_t>(load.running_sequences));
  loads.set_reservations(static_cast<uint64_t>(load.reservations));
  loads.set_pages_total(static_cast<uint64_t>(load.pages_total));
  loads.set_pages_free(static_cast<uint64_t>(load.pages_free));
  loads.set_pages_reserved(static_cast<uint64_t>(load.pages_reserved));
  loads.set_free_slots(FreeSlots(worker, load));
  return loads;
}

}  // namespace baton::worker::operations
