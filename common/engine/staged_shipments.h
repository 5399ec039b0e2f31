// Pages that leave a device for sinks, over host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "common/engine/kv_sink.h"
#include "common/engine/step.h"
#include "kernels/core/exec_context.h"

namespace baton::engine {

// Copies run beside the step, on side queues where there are such; sinks are told when it is over.
// Executor thread.
class StagedShipments {
 public:
  // What `exec` points to is borrowed.
  explicit StagedShipments(const kernels::ExecContext& exec) : exec_(exec) {}

  // Begins to copy pages, which ops that were called before have written, to where the sequence
  // stages them. `ready` has them where the device has them.
  absl::Status Add(const StepSequence& rows, ReadyKv ready);
  // Waits for the copies and gives what was added to its sinks, in order.
  absl::Status Deliver();
  // The step has failed: waits, so that nothing is copied once the pages are given back, and
  // forgets.
  void Abandon();

 private:
  struct Shipment {
    KvSink* sink = nullptr;
    ReadyKv ready;
  };

  absl::Status AwaitCopies() const;

  const kernels::ExecContext exec_;
  int32_t next_queue_ = 0;
  std::vector<Shipment> shipments_;
};

}  // namespace baton::engine
