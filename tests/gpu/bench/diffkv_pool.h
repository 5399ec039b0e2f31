// Sequences in format `diffkv` on the device, as large as a serving worker holds them.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/diffkv_arrays.h"
#include "tests/gpu/bench/diffkv_load.h"

namespace baton::kernels::cuda {

// Pages of every (layer, row), scattered over one pool; each layer's pages are its own. A head's
// low tokens are its oldest, and positions go from 0 without gaps. Spare pages hold what sequences
// that gave them back left.
class DiffKvPool {
 public:
  // Waits for the queue.
  static absl::StatusOr<DiffKvPool> Make(const DeviceQueue& queue, const DiffKvLoad& load);

  // On the device.
  const DiffKvArrays& arrays() const { return arrays_; }

 private:
  DeviceArena arena_;
  DiffKvArrays arrays_;
};

}  // namespace baton::kernels::cuda
