#include "common/engine/staged_shipments.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/engine/kv_sink.h"
#include "common/engine/sequence.h"
#include "common/engine/step.h"
#include "common/kv/codec/staged_window.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/side_queues.h"

namespace baton::engine {

absl::Status StagedShipments::Add(const StepSequence& rows, ReadyKv ready) {
  kernels::ExecContext exec = exec_;
  if (exec_.side != nullptr) {
    BATON_ASSIGN_OR_RETURN(exec, exec_.side->Fork(exec_, next_queue_++ % exec_.side->count()));
  }
  const kv::StagedWindow& staged = *rows.sequence->staged;
  const auto page_count = static_cast<size_t>(ready.page_count);
  Shipment& shipment = shipments_.emplace_back();
  shipment.sink = rows.ship.sink;
  for (int32_t layer = ready.layer_begin; layer < ready.layer_end; ++layer) {
    const auto first = static_cast<size_t>(layer - ready.layer_begin) * page_count;
    BATON_RETURN_IF_ERROR(
        staged.StartDownload(*exec.memory,
                             layer,
                             ready.page_begin,
                             std::span(std::as_const(ready.pages)).subspan(first, page_count)));
    for (size_t page = 0; page < page_count; ++page) {
      ready.pages[first + page] = staged.page(layer, ready.page_begin + static_cast<int32_t>(page));
    }
  }
  shipment.ready = std::move(ready);
  return absl::OkStatus();
}

absl::Status StagedShipments::AwaitCopies() const {
  if (exec_.side != nullptr) {
    BATON_RETURN_IF_ERROR(exec_.side->Join());
  }
  return exec_.memory->Wait();
}

absl::Status StagedShipments::Deliver() {
  if (shipments_.empty()) {
    return absl::OkStatus();
  }
  const absl::Status status = AwaitCopies();
  std::vector<Shipment> shipments = std::exchange(shipments_, {});
  for (Shipment& shipment : shipments) {
    if (status.ok()) {
      shipment.sink->LayersReady(std::move(shipment.ready));
    }
  }
  return status;
}

void StagedShipments::Abandon() {
  if (!std::exchange(shipments_, {}).empty()) {
    AwaitCopies().IgnoreError();  // the step's error is told
  }
}

}  // namespace baton::engine
