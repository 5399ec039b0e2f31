// Control.GetLoads.
#pragma once

#include "proto/baton/worker/v1/control.pb.h"

namespace baton::worker {
class Worker;
}

namespace baton::worker::operations {

// A snapshot of the engine's load, as the router's scheduling wants it.
v1::Loads GetLoads(const Worker& worker);

}  // namespace baton::worker::operations
