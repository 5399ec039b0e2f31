// What transports need of a worker's device.
#pragma once

#include "kernels/core/device_link.h"
#include "kernels/core/landing_memory.h"

namespace baton::worker {

// Borrowed; null where the host computes.
struct TransportDevice {
  kernels::LandingMemory* memory = nullptr;  // of windows
  kernels::DeviceLinks* links = nullptr;     // there when nccl is offered
};

}  // namespace baton::worker
