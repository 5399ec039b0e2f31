// Control.Abort.
#pragma once

#include "absl/status/status.h"

#include "proto/baton/worker/v1/control.pb.h"

namespace baton::worker {
class Worker;
}

namespace baton::worker::operations {

// Ends the named requests with CANCELLED; ids that are not running are ignored. kInvalidArgument
// for more than 10,000 ids.
absl::Status Abort(Worker& worker, const v1::AbortRequest& request);

}  // namespace baton::worker::operations
