// Control.GetServerInfo.
#pragma once

#include "proto/baton/worker/v1/control.pb.h"

namespace baton::worker {
class Worker;
}

namespace baton::worker::operations {

// What this worker is: constant from start to end of the process.
v1::ServerInfo GetServerInfo(const Worker& worker);

}  // namespace baton::worker::operations
