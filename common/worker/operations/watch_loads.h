// Control.WatchLoads.
#pragma once

#include "grpcpp/support/server_callback.h"

#include "proto/baton/worker/v1/control.pb.h"

namespace baton::worker {
class Worker;
}

namespace baton::worker::operations {

// A reactor that reports the load at once, then every `interval` (default 100 ms; values outside
// [10 ms, 10 s] are refused with kInvalidArgument) and, within 10 ms, when there are more free
// slots or pages than reported, until the caller ends the call: who waits for room need not wait
// for the interval. It owns itself.
grpc::ServerWriteReactor<v1::Loads>* WatchLoads(Worker& worker,
                                                const v1::WatchLoadsRequest& request);

}  // namespace baton::worker::operations
