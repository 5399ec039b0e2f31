#include "common/worker/operations/set_log_level.h"

#include "common/rpc/logging.h"

namespace baton::worker::operations {

absl::Status SetLogLevel(const v1::SetLogLevelRequest& request) {
  return rpc::SetLogLevel(request.level());
}

}  // namespace baton::worker::operations
