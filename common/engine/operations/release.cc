#include <memory>
#include <vector>

#include "common/engine/operations/operations.h"
#include "common/engine/page_plan.h"

namespace baton::engine {
namespace {

// A sink that was never committed is told that nothing more will come, and may still be reading.
void AbortSink(EngineState& state, ActiveRequest& request) {
  request.sink_reading = true;
  state.sink_reading.emplace(request.serial, &request);
  request.sink->Abort(request.end_status,
                      [commands = state.parts.commands,
                       pool = state.parts.pool,
                       codecs = state.parts.codecs,
                       staging = state.parts.staging,
                       serial = request.serial] {
                        commands->PushAlways([serial](EngineState& engine) {
                          FinishHandOff(engine, serial, absl::OkStatus(), 0);
                        });
                      });
}

}  // namespace

void ReleaseReservation(EngineState& state, const ActiveRequest& request) {
  const uint64_t id = request.reservation.reservation_id;
  state.reservations.Remove(id);
  state.reserved.erase(id);
  state.pages_reserved -= request.pages_held;
  if (state.parts.reservation_observer != nullptr) {
    state.parts.reservation_observer->OnReservationReleased(id);
  }
}

void ReleaseEnded(EngineState& state) {
  ExpireKept(state);
  for (const auto& request : state.closing) {
    const bool sink_open =
        request->sink != nullptr && !request->sink_reading && !request->sink_finished;
    if (sink_open && request->at_rest()) {
      AbortSink(state, *request);
    }
  }
  std::erase_if(state.closing, [&](const std::unique_ptr<ActiveRequest>& request) {
    if (!request->releasable()) {
      return false;
    }
    if (!KeepKv(state, *request)) {
      ReleaseSequences(*state.parts.pool, *request);
    }
    return true;
  });
}

}  // namespace baton::engine
